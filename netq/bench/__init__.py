"""netq bench: measures what a link gives to netq, as iperf measures what it gives to a bare socket.

cli.py, checks.py, command.py   the command line; the exit status, and what is printed (report.py)
spawn.py                        the communicators of both sides; a server process on the client's machine
workloads.py, load.py, sweep.py what is measured: iops, latency, throughput; load at a rate; both by size
client.py, service.py           the two sides; protocol.py has control messages, streaming.py the measured ones

benchmarks/ shares these: plan.py, sizes, counts and order of messages; resources.py, CPU time, memory and cores;
statistics.py, percentiles and the search for a rate; output.py, tables and plots. Uses the public API of netq only: it
measures what a user gets.
"""
