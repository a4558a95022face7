import torch

from attention_course.device import best_device


def test_the_best_device_computes():
    device = best_device()
    assert torch.ones(2, device=device).sum().item() == 2
    assert (device.type == "cuda") == torch.cuda.is_available()
