"""The aggregation server. From the user's side to the network's:

server      runs rounds, and keeps the model         checkpoint  writes and reads the server's state
round       asks clients, and yields their answers   patience    how long a server waits
rule        says when a round is complete            validation  checks the arguments of a server
answers     what has come of each client             waiting     waits until enough peers are connected
members     moves messages from and to clients       limits      bounds the memory of updates
member      one client: its states, its record       allowance   bounds the time that a client costs for nothing
standing    for which clients a round waits          aggregation makes the next model, by the tensors' roles
admission   bounds the updates on their way          details     what is needed to repeat a run
dispatcher  tracks tasks until they are answered

May import netq, fl.messages, fl.report, fl.errors, fl.tensors, fl.aggregation, fl.strategies and fl.callbacks.
"""
