"""A Flower ClientApp: trains a softmax regression on its part of the digits."""

import numpy as np
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from sklearn.datasets import load_digits

app = ClientApp()
images, labels = load_digits(return_X_y=True)
images, labels = images / 16, np.eye(10)[labels]


@app.train()
def train(message, context):
    part = slice(context.node_config["partition-id"], None, context.node_config["num-partitions"])
    x, y = images[part], labels[part]
    weights = message.content["arrays"]["weights"].numpy()
    for _ in range(20):
        scores = np.exp(x @ weights)
        weights = weights - 0.5 * x.T @ (scores / scores.sum(axis=1, keepdims=True) - y) / len(x)
    accuracy = np.mean((x @ weights).argmax(axis=1) == y.argmax(axis=1))
    metrics = MetricRecord({"num-examples": len(x), "accuracy": float(accuracy)})
    return Message(
        RecordDict({"arrays": ArrayRecord({"weights": Array(weights)}), "metrics": metrics}), reply_to=message
    )
