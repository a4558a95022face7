"""The capstone as somebody else writes it: no nn.Linear, fused projections, einsum, other names, a cache in
tensors made beforehand, Gumbel noise in place of a draw."""

import numpy as np
import torch
from torch import einsum, nn


class Tokenizer:
    def __init__(self, corpus):
        self.alphabet = np.unique(list(corpus))

    @property
    def size(self):
        return len(self.alphabet)

    def encode(self, sentence):
        return np.searchsorted(self.alphabet, list(sentence)).tolist()

    def decode(self, ids):
        return "".join(map(str, self.alphabet[ids]))


def normed(x, gain_and_shift):
    centred = x - x.mean(-1, keepdim=True)
    return (
        centred * torch.rsqrt(centred.pow(2).mean(-1, keepdim=True) + 1e-5) * gain_and_shift[0]
        + gain_and_shift[1]
    )


class GPT(nn.Module):
    def __init__(self, vocabulary, length, d_model, num_heads, num_layers, dropout=0.0):
        super().__init__()
        self.h, self.p, self.max = num_heads, dropout, length
        k = d_model // num_heads

        def small(*shape):
            return nn.Parameter(torch.randn(shape) * 0.02)

        self.wte, self.wpe = small(vocabulary, d_model), small(length, d_model)
        self.blocks = nn.ParameterList()
        for _ in range(num_layers):
            norms = nn.Parameter(torch.stack([torch.ones(2, d_model), torch.zeros(2, d_model)], 1))
            self.blocks += [
                norms, small(d_model, 3, num_heads, k), nn.Parameter(torch.zeros(3, num_heads, k)),
                small(num_heads, k, d_model), nn.Parameter(torch.zeros(d_model)),
                small(d_model, 4 * d_model), nn.Parameter(torch.zeros(4 * d_model)),
                small(4 * d_model, d_model), nn.Parameter(torch.zeros(d_model)),
            ]  # fmt: skip
        self.last = nn.Parameter(torch.stack([torch.ones(d_model), torch.zeros(d_model)]))
        self.register_buffer("future", torch.full((length, length), float("-inf")).triu(1), persistent=False)

    def load(self, state):
        def stacked(start, names, kind):
            return torch.stack([state[f"{start}.{name}.{kind}"] for name in names])

        with torch.no_grad():
            self.wte.copy_(state["token.weight"])
            self.wpe.copy_(state["position.weight"])
            self.last.copy_(torch.stack([state["norm.weight"], state["norm.bias"]]))
            for i in range(len(self.blocks) // 9):
                at, own = f"layers.{i}", self.blocks[9 * i : 9 * i + 9]
                own[0].copy_(
                    torch.stack([stacked(at, ("norm_1", "norm_2"), kind) for kind in ("weight", "bias")], 1)
                )
                weight = stacked(at, ("query", "key", "value"), "weight")
                own[1].copy_(weight.permute(2, 0, 1).reshape(own[1].shape))
                own[2].copy_(stacked(at, ("query", "key", "value"), "bias").reshape(own[2].shape))
                own[3].copy_(state[f"{at}.output.weight"].T.reshape(own[3].shape))
                own[4].copy_(state[f"{at}.output.bias"])
                own[5].copy_(state[f"{at}.inner.weight"].T)
                own[6].copy_(state[f"{at}.inner.bias"])
                own[7].copy_(state[f"{at}.outer.weight"].T)
                own[8].copy_(state[f"{at}.outer.bias"])

    def forward(self, tokens, memory=None, first=0):
        last = first + tokens.shape[1]
        x = self.wte[tokens] + self.wpe[first:last]
        drop = nn.functional.dropout
        for i in range(len(self.blocks) // 9):
            norms, w, b, w_out, b_out, w_in, b_in, w_back, b_back = self.blocks[9 * i : 9 * i + 9]
            q, k, v = (einsum("btd,dnhk->nbthk", normed(x, norms[0]), w) + b[:, None, None]).unbind()
            if memory is not None:
                memory[i, 0, :, first:last], memory[i, 1, :, first:last] = k, v
                k, v = memory[i, :, :, :last]
            a = einsum("bthk,bshk->bhts", q, k) * q.shape[-1] ** -0.5 + self.future[first:last, :last]
            a = (a - a.amax(-1, keepdim=True)).exp()
            context = einsum("bhts,bshk->bthk", a / a.sum(-1, keepdim=True), v)
            x = x + drop(einsum("bthk,hkd->btd", context, w_out) + b_out, self.p, self.training)
            inner = normed(x, norms[1]) @ w_in + b_in
            inner = inner * 0.5 * (1 + torch.erf(inner / 2**0.5))
            x = x + drop(inner @ w_back + b_back, self.p, self.training)
        return einsum("btd,vd->btv", normed(x, self.last), self.wte)

    @torch.inference_mode()
    def generate(self, tokens, number, temperature=1.0):
        batch, start = tokens.shape
        text = tokens.new_zeros(batch, start + number)
        text[:, :start] = tokens
        shape = len(self.blocks) // 9, 2, batch, self.max, self.h, self.wte.shape[1] // self.h
        memory, read = self.wte.new_zeros(shape), 0
        for now in range(start, start + number):
            logits = self(text[:, read:now], memory, read)[:, -1]
            read = now
            if temperature > 0:  # the largest of logits with Gumbel noise is a draw from their softmax
                logits = logits / temperature - torch.empty_like(logits).exponential_().log()
            text[:, now] = logits.max(-1).indices
        return text


def update(model, optimizer, tokens, step):
    optimizer.zero_grad(set_to_none=False)
    model.train(True)
    p = model(tokens).log_softmax(-1)
    loss = -p[:, :-1].gather(2, tokens[:, 1:, None]).mean()
    loss.backward()
    length = sum(one.grad.square().sum() for one in model.parameters()) ** 0.5
    for one in model.parameters():
        one.grad /= max(1.0, length.item())
    for group in optimizer.param_groups:
        group["lr"] = 4e-3 if step >= 49 else 4e-3 * (step + 1) / 50
    optimizer.step()
    return loss.detach()


def train(tokens, vocabulary, seed):
    """Pieces cut side by side instead of drawn, and a rate that falls again."""
    generator = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)
    model = GPT(vocabulary, 64, 64, 2, 2)
    optimizer = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.95))
    pieces, steps, batch = tokens.unfold(0, 65, 16), 600, 12
    rate = torch.optim.lr_scheduler.OneCycleLR(optimizer, 5e-3, total_steps=steps)
    order = torch.cat([torch.randperm(len(pieces), generator=generator) for _ in range(steps)])
    for rows in order[: steps * batch].view(steps, batch):
        p = model(pieces[rows][:, :-1]).log_softmax(-1)
        (-p.gather(2, pieces[rows][:, 1:, None]).mean()).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        rate.step()
        optimizer.zero_grad()
    return model.eval()
