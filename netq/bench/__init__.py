"""netq bench: what the link between a board and a server gives, as iperf tells it of a bare socket.

arguments.py, checks.py    the command line: what may be said, and what goes with what
command.py                 the exit status, what is printed (report.py, progress.py), in whose words (words.py)
sides.py, local.py         the communicators of both sides; a server of the client's own, on this machine
works.py, load.py          what is measured: iops, latency, throughput; load at a rate
client.py, service.py      what each side does; protocol.py is what they say to each other, flow.py how messages pass
crowd.py                   several clients at once
plan.py, percentiles.py, search.py, usage.py   sizes and counts, percentiles, the highest rate, CPU and memory

Stands on the public API alone: it measures what a user gets.
"""
