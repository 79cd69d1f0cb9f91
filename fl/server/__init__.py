"""The aggregation server. From the user's side to the network's:

server        runs rounds, and keeps the model            checkpoint    writes and reads the server's state
collector     collects the answers of a round             validation    checks the arguments of a server
client_tasks  gives tasks to clients, checks replies      waiting       waits until enough peers are connected
admission     bounds the updates on their way
dispatcher    tracks tasks until they are answered

May import netq, fl.messages, fl.report, fl.errors, fl.tensors, fl.aggregation, fl.strategies and fl.callbacks.
"""
