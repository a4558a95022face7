from typing import NamedTuple

import torch

from attention_course.device import best_device, moved
from attention_course.lab.train.loop import train


def test_the_best_device_computes():
    device = best_device()
    assert torch.ones(2, device=device).sum().item() == 2
    assert (device.type == "cuda") == torch.cuda.is_available()


class Pair(NamedTuple):
    given: torch.Tensor
    names: list[str]


def test_everything_moves_in_its_own_shape():
    data = {"pair": Pair(torch.ones(2), ["a"]), "more": [torch.ones(3), (torch.ones(1), None)]}
    result = moved(data, "meta")
    pair, (first, (second, nothing)) = result["pair"], result["more"]
    assert type(pair) is Pair and pair.given.is_meta and pair.names == ["a"]
    assert first.is_meta and second.is_meta and nothing is None


def test_a_training_takes_place_where_it_is_told():
    def loss(model, batch):
        assert batch[0].device == model.weight.device == torch.device("cpu")
        return model(batch[0]).square().mean()

    def batches():
        while True:
            yield (torch.ones(4, 2),)

    model = torch.nn.Linear(2, 1)
    history = train(model, batches(), loss, steps=3, learning_rate=0.1, device=torch.device("cpu"))
    assert len(history.losses) == 3
