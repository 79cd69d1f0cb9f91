"""Boards on one desk: `edge simulate CLIENT.toml --boards 8 --cpus 0.25 --memory 128M --bandwidth 1Mbit`.

Runs agents as if each were on a small board: every agent is in a cgroup and in a network namespace of its own. Needs
Linux, root, and the tools of iproute2 (ip, tc) and util-linux (setpriv). The parts:

limits      the values of the command line
device      the device's file, and by what the boards differ
cgroups     processor, memory and number of processes, in cgroups of version 1 or 2
network     one namespace a board, one more for the router, and a cable from each board to the router
relay       passes bytes between the router and the server, both ways, after the delay
processes   starts the agents, prefixes their logs, waits for them and ends them
leftovers   names with the process id, so that a later run removes what a killed run has left
command     the command: errors, signals, and the table at the end

How a board reaches the server:

    board's namespace          router's namespace                this machine
    agent ── uplink ═══════ board3 ── listener ── relay ── connection to the server
             tbf: sends        tbf: receives

Token bucket filters (`tc qdisc … tbf`) at both ends of the cable limit the rate. We chose them over a relay that counts
bytes: the kernel delays and drops real packets, so headers, acknowledgements and TCP's congestion control are as on a
slow link. Every distribution's kernel has sch_tbf. Many small kernels have no netem, so the relay makes the delay.

The relay is here because a namespace cannot reach a server that listens at 127.0.0.1 of this machine. A socket stays in
the namespace where it was made: this process listens in the router's namespace and connects from its own. Therefore no
interface, route or firewall rule of this machine changes. The agent uses the address of its file: the router has that
address, and a rule in the board's namespace sends the server's port there, also that of 127.0.0.1. Certificates are
checked for the name in the file.
"""
