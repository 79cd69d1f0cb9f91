"""A Flower ClientApp: trains and evaluates on its part of the digits."""

from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from digits_flower import task

app = ClientApp()


@app.train()
def train(message, context):
    x, y = task.load(context.node_config["partition-id"], context.node_config["num-partitions"])
    config = context.run_config
    weights = message.content["arrays"]["weights"].numpy()
    weights = task.fit(weights, x, y, config["train.learning-rate"], config["train.steps"])
    metrics = MetricRecord({"num-examples": len(x), "accuracy": task.accuracy(weights, x, y)})
    arrays = ArrayRecord({"weights": Array(weights)})
    return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)


@app.evaluate()
def evaluate(message, context):
    x, y = task.load(context.node_config["partition-id"], context.node_config["num-partitions"])
    accuracy = task.accuracy(message.content["arrays"]["weights"].numpy(), x, y)
    metrics = MetricRecord({"num-examples": len(x), "accuracy": accuracy})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)
