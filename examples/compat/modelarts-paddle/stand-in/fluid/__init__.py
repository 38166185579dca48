"""For the tests only: as much of Paddle 1.x's `paddle.fluid` as `train_with_fleet.py` uses, made of today's Paddle.

Paddle 2.0.1, for which the script was written, is not to be had from PyPI any more, and its collectives need GPUs. Here
a "program" is the expression that `layers` builds. Running it is a step of real data-parallel training: forward,
backward, gradients averaged over all trainers by `fleet`, update. A `CUDAPlace` is the CPU where there is no GPU.
"""

from types import SimpleNamespace

import paddle


class Variable:
    """A value that is computed when the program runs."""

    def __init__(self, name, compute, layers=()):
        self.name, self.compute, self.layers = name, compute, list(layers)


def _data(name, shape, dtype):
    return Variable(name, lambda feed: paddle.to_tensor(feed[name], dtype=dtype))


def _fc(input, size, act=None):
    source = input[0] if isinstance(input, list) else input
    width = next((layer.weight.shape[1] for layer in reversed(source.layers)), 32)
    linear = paddle.nn.Linear(width, size)
    activate = getattr(paddle.nn.functional, act) if act else (lambda value: value)
    return Variable(
        f"fc_{len(source.layers)}", lambda feed: activate(linear(source.compute(feed))), [*source.layers, linear]
    )


def _cross_entropy(input, label):
    def compute(feed):
        return paddle.nn.functional.cross_entropy(input.compute(feed), label.compute(feed), use_softmax=False)

    return Variable("cross_entropy", compute, input.layers)


def _mean(x):
    return Variable("mean", lambda feed: x.compute(feed).mean(), x.layers)


layers = SimpleNamespace(data=_data, fc=_fc, cross_entropy=_cross_entropy, mean=_mean)


class Network(paddle.nn.Layer):
    """The layers of a program as one, whose gradients fleet averages."""

    def __init__(self, cost):
        super().__init__()
        self.layers = paddle.nn.LayerList(cost.layers)
        self.compute = cost.compute

    def forward(self, feed):
        return self.compute(feed)


class Program:
    """What `fleet.main_program` is: one training step."""

    def __init__(self, cost, learning_rate):
        self.name = cost.name
        self.network = Network(cost)
        self.parallel = paddle.distributed.fleet.distributed_model(self.network)
        optimizer = paddle.optimizer.SGD(learning_rate, parameters=self.network.parameters())
        self.optimizer = paddle.distributed.fleet.distributed_optimizer(optimizer)

    def step(self, feed):
        cost = self.parallel(feed)
        cost.backward()
        self.optimizer.step()
        self.optimizer.clear_grad()
        return cost.numpy()


class Executor:
    def __init__(self, place):
        self.place = place

    def run(self, program=None, feed=None, fetch_list=()):
        if program is None:
            return []
        cost = program.step(feed)
        return [cost for name in fetch_list if name == program.name]


def CUDAPlace(number):  # noqa: N802
    return paddle.CUDAPlace(number) if paddle.is_compiled_with_cuda() else paddle.CPUPlace()


def default_startup_program():
    """Parameters have their first values from the start."""


class _SGD:
    def __init__(self, learning_rate):
        self.learning_rate = learning_rate


optimizer = SimpleNamespace(SGD=_SGD)
