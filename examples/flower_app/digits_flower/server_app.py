"""A Flower ServerApp: stock FedAvg."""

import numpy as np
from flwr.app import Array, ArrayRecord
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg

from digits_flower import task

app = ServerApp()


@app.main()
def main(grid, context):
    model = ArrayRecord({"weights": Array(np.zeros(task.SHAPE))})
    result = FedAvg().start(grid, model, num_rounds=context.run_config["num-server-rounds"])
    for number, metrics in result.evaluate_metrics_clientapp.items():
        print(f"round {number}: accuracy {metrics['accuracy']:.3f}")
