"""Layers, gradients and optimizers against PyTorch, the same parameters and inputs on both sides."""

from __future__ import annotations

import numpy as np
import pytest

from aril import Context, Tensor, nn

torch = pytest.importorskip("torch", reason="PyTorch comes with the extra `peers`")


def sample(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


LAYERS = {
    "Linear": (lambda m: m.Linear(5, 3), (4, 5)),
    "Conv1d": (lambda m: m.Conv1d(4, 6, 3, stride=2, padding=1, dilation=2, groups=2), (2, 4, 9)),
    "Conv2d": (lambda m: m.Conv2d(3, 4, (3, 2), stride=(2, 1), padding=(1, 0)), (2, 3, 7, 6)),
    "Conv2d same": (lambda m: m.Conv2d(3, 4, (3, 2), padding="same"), (2, 3, 5, 6)),
    "Conv2d grouped": (lambda m: m.Conv2d(4, 4, 3, groups=4, dilation=2), (2, 4, 7, 6)),
    "ConvTranspose1d": (
        lambda m: m.ConvTranspose1d(4, 6, 3, stride=2, padding=1, output_padding=1, groups=2),
        (2, 4, 5),
    ),
    "ConvTranspose2d": (lambda m: m.ConvTranspose2d(3, 4, (3, 2), stride=2, padding=(1, 0), dilation=2), (2, 3, 4, 5)),
    "BatchNorm1d": (lambda m: m.BatchNorm1d(3), (5, 3)),
    "BatchNorm2d": (lambda m: m.BatchNorm2d(3), (4, 3, 2, 5)),
    "LayerNorm": (lambda m: m.LayerNorm((3, 4)), (2, 3, 4)),
    "GroupNorm": (lambda m: m.GroupNorm(2, 4), (2, 4, 3)),
    "RMSNorm": (lambda m: m.RMSNorm(4, eps=1e-6), (3, 4)),
}


@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_and_its_gradients_are_those_of_pytorch(name):
    make, shape = LAYERS[name]
    ours, theirs = make(nn), make(torch.nn)
    state = nn.state.get_state_dict(ours)
    expected = dict(theirs.state_dict())
    assert state.keys() == expected.keys()
    for key, t in state.items():
        assert tuple(t.shape) == tuple(expected[key].shape)
        if key in ("weight", "bias"):
            values = sample(*t.shape, seed=7)
            t.assign(Tensor(values)).realize()
            with torch.no_grad():
                getattr(theirs, key).copy_(torch.tensor(values))
    data = sample(*shape)
    x, y = Tensor(data).is_param_(True), torch.tensor(data, requires_grad=True)
    with Context(TRAINING=1):
        out = ours(x)
    wanted = theirs(y)
    weights = sample(*out.shape, seed=3)
    (out * Tensor(weights)).sum().backward()
    (wanted * torch.tensor(weights)).sum().backward()
    close(out, wanted)
    close(x.grad, y.grad)
    for key, p in theirs.named_parameters():
        close(getattr(ours, key).grad, p.grad)
    for key in ("running_mean", "running_var"):
        if key in state:
            close(state[key], expected[key])


def close(ours, theirs, tolerance=3e-5):
    np.testing.assert_allclose(ours.numpy(), theirs.detach().numpy(), rtol=tolerance, atol=tolerance)


OPTIMIZERS = {
    "SGD": (lambda m, p: m.SGD(p, lr=0.1), 0),
    "SGD momentum": (lambda m, p: m.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.05), 0),
    "SGD nesterov": (lambda m, p: m.SGD(p, lr=0.1, momentum=0.9, nesterov=True), 0),
    "Adam": (lambda m, p: m.Adam(p, lr=0.01), 0),
    "Adam decay": (lambda m, p: m.Adam(p, lr=0.01, betas=(0.8, 0.95), eps=1e-6, weight_decay=0.1), 0),
    "AdamW": (lambda m, p: m.AdamW(p, lr=0.01, weight_decay=0.1), 0),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_optimizer_makes_the_steps_of_pytorch(name):
    make, _ = OPTIMIZERS[name]
    shapes = [(4, 3), (5,)]
    ours = [Tensor(sample(*s)).is_param_(True) for s in shapes]
    theirs = [torch.tensor(sample(*s), requires_grad=True) for s in shapes]
    a, b = make(nn.optim, ours), make(torch.optim, theirs)
    for step in range(5):
        for o, t, s in zip(ours, theirs, shapes, strict=True):
            g = sample(*s, seed=step + 10)
            o.grad, t.grad = Tensor(g), torch.tensor(g)
        a.step()
        b.step()
        for o, t in zip(ours, theirs, strict=True):
            np.testing.assert_allclose(o.numpy(), t.detach().numpy(), rtol=1e-5, atol=1e-6)


def test_muon_follows_pytorch_which_orthogonalizes_in_bfloat16():
    data = sample(6, 4)
    ours, theirs = Tensor(data).is_param_(True), torch.nn.Parameter(torch.tensor(data))
    a, b = nn.optim.Muon([ours], lr=0.01), torch.optim.Muon([theirs], lr=0.01)
    for step in range(3):
        g = sample(6, 4, seed=step + 10)
        ours.grad, theirs.grad = Tensor(g), torch.tensor(g)
        a.step()
        b.step()
    np.testing.assert_allclose(ours.numpy(), theirs.detach().numpy(), atol=2e-3)


def test_a_small_network_trains_along_with_pytorch():
    x, y = sample(16, 1, 8, 8), np.arange(16) % 5
    ours = [
        nn.Conv2d(1, 4, 3),
        Tensor.relu,
        nn.BatchNorm(4),
        Tensor.max_pool2d,
        lambda t: t.flatten(1),
        nn.Linear(36, 5),
    ]
    theirs = torch.nn.Sequential(
        torch.nn.Conv2d(1, 4, 3), torch.nn.ReLU(), torch.nn.BatchNorm2d(4), torch.nn.MaxPool2d(2), torch.nn.Flatten(),
        torch.nn.Linear(36, 5),
    )  # fmt: skip
    nn.state.load_state_dict(
        ours,
        {k: Tensor(v.numpy()) for k, v in theirs.state_dict().items()},
    )
    a = nn.optim.Adam(nn.state.get_parameters(ours), lr=0.01)
    b = torch.optim.Adam(theirs.parameters(), lr=0.01)
    for _ in range(4):
        a.zero_grad()
        b.zero_grad()
        with Context(TRAINING=1):
            loss = Tensor(x).sequential(ours).sparse_categorical_crossentropy(Tensor(y.astype(np.int32)))
            loss.backward()
            got = loss.item()
            a.step()
        wanted = torch.nn.functional.cross_entropy(theirs(torch.tensor(x)), torch.tensor(y))
        wanted.backward()
        b.step()
        assert got == pytest.approx(wanted.item(), rel=2e-4)


class _Bottlenecks:
    """Two residual blocks of three convolutions, the second at half the size, of either framework's layers."""

    def __init__(self, m):
        pairs = [
            (3, 4, 3, 1),
            (4, 2, 1, 1),
            (2, 2, 3, 1),
            (2, 4, 1, 1),
            (4, 4, 1, 1),
            (4, 4, 3, 2),
            (4, 8, 1, 1),
            (4, 8, 1, 2),
        ]
        self.convs = [m.Conv2d(i, o, k, stride=s, padding=k // 2, bias=False) for i, o, k, s in pairs]
        self.norms = [m.BatchNorm2d(o) for _, o, _, _ in pairs]
        self.head = m.Linear(8, 3)
        self.layers = [*self.convs, *self.norms, self.head]

    def __call__(self, x):
        def layer(i, x):
            return self.norms[i](self.convs[i](x))

        x = layer(0, x).relu()
        x = (x + layer(3, layer(2, layer(1, x).relu()).relu())).relu()
        x = (layer(7, x) + layer(6, layer(5, layer(4, x).relu()).relu())).relu()
        return self.head(x.mean((2, 3)))


def test_bottlenecks_train_along_with_pytorch():
    """In float64: in float32 the statistics of few elements and gates at 0 make two right programs drift apart. After
    three steps ResNet-50 over 8 images of 32x32 is 3e-2 from its losses in float64, in PyTorch as here."""
    with Context(TRAINING=1, DEFAULT_FLOAT="float64"):
        ours, theirs = _Bottlenecks(nn), _Bottlenecks(torch.nn)
        for k, (a, b) in enumerate(zip(ours.layers, theirs.layers, strict=True)):
            b.double()
            for name, p in b.named_parameters():
                values = sample(*p.shape, seed=k).astype(np.float64)
                getattr(a, name).assign(Tensor(values)).realize()
                p.data.copy_(torch.tensor(values))
        data, labels = sample(4, 3, 6, 6).astype(np.float64), np.array([0, 1, 2, 1])
        mine = nn.optim.SGD([t for layer in ours.layers for t in nn.state.get_parameters(layer)], 0.03, momentum=0.9)
        other = torch.optim.SGD([p for layer in theirs.layers for p in layer.parameters()], 0.03, momentum=0.9)
        for _ in range(3):
            mine.zero_grad(), other.zero_grad()
            loss = ours(Tensor(data)).sparse_categorical_crossentropy(Tensor(labels))
            wanted = torch.nn.functional.cross_entropy(theirs(torch.tensor(data)), torch.tensor(labels))
            loss.backward(), wanted.backward()
            mine.step(), other.step()
            close(loss, wanted, 1e-12)
    for a, b in zip(ours.layers, theirs.layers, strict=True):
        for name, t in b.state_dict().items():
            close(getattr(a, name), t, 1e-12)


def test_one_cycle_is_that_of_pytorch():
    p = torch.nn.Parameter(torch.zeros(1))
    theirs = torch.optim.lr_scheduler.OneCycleLR(torch.optim.SGD([p], lr=0.1), 1.0, total_steps=20)
    expected = []
    for _ in range(20):
        expected.append(theirs.get_last_lr()[0])
        theirs.optimizer.step()
        if len(expected) < 20:
            theirs.step()
    rate = nn.schedules.one_cycle(1.0, 20)
    np.testing.assert_allclose([rate(t) for t in range(20)], expected, rtol=1e-9)
