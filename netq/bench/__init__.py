"""netq bench: measures what a link gives to netq, as iperf measures what it gives to a bare socket.

cli.py, checks.py, command.py   the command line; the exit status, and what is printed (report.py, progress.py)
spawn.py                        the communicators of both sides; a server process on the client's machine
workloads.py, load.py           what is measured: iops, latency, throughput; load at a rate
sweep.py, sweep_output.py       what is measured by size, with its table, files and plot
client.py, service.py           the two sides; protocol.py has control messages, streaming.py the measured ones
plan.py, resources.py           sizes, counts and order of messages; CPU time, memory and cores

Uses the public API of netq only: it measures what a user gets.
"""
