"""The command `netq`: its sub-commands, and the launchers of the commands `fl` and `edge`.

May import all of netq. netq.bench brings its own command line.
"""
