"""A Flower ServerApp: stock FedAvg, five rounds."""

import numpy as np
from flwr.app import Array, ArrayRecord
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg

app = ServerApp()


@app.main()
def main(grid, context):
    model = ArrayRecord({"weights": Array(np.zeros((64, 10)))})
    result = FedAvg(fraction_evaluate=0.0).start(grid, model, num_rounds=5)
    for number, metrics in result.train_metrics_clientapp.items():
        print(f"round {number}: accuracy on the clients' data {metrics['accuracy']:.3f}")
