"""Bounds on what an answer does: a table of all pairs, a loop; and inputs that count as constants."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from attention_course.checks import find_exercise
from attention_course.checks.engine.asks import Effort, Function, Module
from attention_course.checks.engine.effort import within
from attention_course.checks.engine.judge import judge_function
from attention_course.checks.engine.observe import Unfit
from attention_course.checks.engine.use import applied

SOFTMAX, GAT, SCORES, LAYER = (
    find_exercise(f"17_graphs.{name}")
    for name in ("segment_softmax", "gat_scores", "gatv2_scores", "graph_attention")
)
RETURNS = find_exercise("18_memory.returns")
LOSS = find_exercise("18_memory.policy_loss")
WRITE = find_exercise("09_decoding.write")


def told(exercise, answer):
    """What is found, as (stage, case, text); mistakes are not looked for, which takes longer."""
    findings = judge_function(replace(exercise, mistakes=()), answer).findings
    return [(one.stage, one.case, one.text) for one in findings]


def by_table(scores, target, num_nodes):
    """Right, and made for each node and edge."""
    mine = target == torch.arange(num_nodes)[:, None]
    mine = mine.view(*mine.shape, *[1] * (scores.dim() - 1))
    table = scores.expand(num_nodes, *scores.shape).masked_fill(~mine, -torch.inf)
    blind = (table == -torch.inf).all(1, keepdim=True)
    weights = table.masked_fill(blind, 0.0).softmax(1).masked_fill(blind, 0.0)
    return weights.sum(0) if not blind.any() else (weights * mine).sum(0)


def by_loop(scores, target, num_nodes):
    """Right, and made node by node."""
    weights = torch.zeros_like(scores)
    for node in range(num_nodes):
        own = scores[target == node]
        blind = (own == -torch.inf).all(0)
        mine = own.masked_fill(blind, 0.0).softmax(0).masked_fill(blind, 0.0)
        weights = weights.index_put(((target == node).nonzero()[:, 0],), mine)
    return weights


def test_a_table_of_all_pairs_is_told_in_the_large_case_alone():
    [(stage, case, text)] = told(SOFTMAX, by_table)
    assert (stage, case) == ("unfit", "400 nodes")
    assert "a tensor of [400, 1000, 2]: 800,000 numbers, where 50,000 are more than enough" in text


def test_a_loop_is_told_in_the_large_case_alone():
    [(stage, case, text)] = told(SOFTMAX, by_loop)
    assert (stage, case) == ("unfit", "400 nodes")
    assert text.startswith("Your function calls torch ") and "where 400 are more than enough" in text


def test_without_bounds_both_pass():
    free = replace(SOFTMAX, asks=Function())
    assert told(free, by_table) == told(free, by_loop) == []


def test_a_table_of_scores_that_is_picked_from_is_told():
    def gatv2_scores(query, key, a, edges):
        table = (F.leaky_relu(query[:, None] + key, 0.2) * a).sum(-1)
        return table[edges[1], edges[0]]

    assert [one[:2] for one in told(SCORES, gatv2_scores)] == [("unfit", "400 nodes")]


def test_what_is_computed_again_is_told_in_the_long_case_alone():
    slow, *_ = (one.function for one in WRITE.mistakes if one.name == "everything again")
    [(stage, case, text)] = told(WRITE, slow)
    assert (stage, case) == ("unfit", "64 steps, float64")
    assert "products and numbers, where 1,000,000 are allowed" in text
    free = replace(WRITE, asks=Function())
    assert told(free, slow) == []


def test_the_slow_way_takes_what_the_notebook_says():
    slow, *_ = (one.function for one in WRITE.mistakes if one.name == "everything again")
    text = next(text for stage, case, text in told(WRITE, slow))
    counted = int(text.partition(" computes ")[2].partition(" ")[0].replace(",", ""))
    assert 0.95 < counted / (20 * WRITE.asks.effort.work) < 1.05


def _all_contexts(x, w_query, w_key, w_value, steps, again=False):
    """With a cache of keys and values, and every token's context; or with one context and no cache."""
    rows, keys, values = x, x @ w_key, x @ w_value
    for _ in range(int(steps)):
        if again:
            keys, values = rows @ w_key, rows @ w_value
        query = (rows[..., -1:, :] if again else rows) @ w_query
        scores = query @ keys.mT / w_query.shape[-1] ** 0.5
        seen = torch.ones(scores.shape[-2:], dtype=torch.bool).tril(keys.shape[-2] - query.shape[-2])
        context = (scores.masked_fill(~seen, -torch.inf).softmax(-1) @ values)[..., -1:, :]
        rows = torch.cat((rows, context / context.square().mean(-1, keepdim=True).sqrt()), -2)
        keys, values = (torch.cat((old, rows[..., -1:, :] @ w), -2)
                        for old, w in ((keys, w_key), (values, w_value)))  # fmt: skip
    return rows[..., x.shape[-2] :, :]


@pytest.mark.parametrize(
    ("answer", "usual"),
    [
        (_all_contexts, "to compute the contexts of all tokens"),
        (lambda *inputs: _all_contexts(*inputs, again=True), "to make the keys and values of all tokens"),
        (next(one.function for one in WRITE.mistakes if one.name == "everything again"),
         "to make everything again"),
    ],
)  # fmt: skip
def test_what_usually_takes_that_much_is_told(answer, usual):
    assert any(usual in text for _, _, text in told(WRITE, answer))


def test_a_cache_in_place_is_told_in_words_and_with_its_line():
    def write(x, w_query, w_key, w_value, steps):
        T, room = x.shape[-2], (*x.shape[:-2], int(steps), x.shape[-1])
        keys = torch.cat((x @ w_key, x.new_zeros(*room[:-1], w_key.shape[-1])), -2)
        values, last, written = torch.cat((x @ w_value, x.new_zeros(room)), -2), x[..., -1:, :], []
        for n in range(T, T + int(steps)):
            row = (last @ w_query @ keys[..., :n, :].mT / w_query.shape[-1] ** 0.5).softmax(-1)
            last = row @ values[..., :n, :]
            last = last / last.square().mean(-1, keepdim=True).sqrt()
            keys[..., n, :], values[..., n, :] = (last @ w_key)[..., 0, :], (last @ w_value)[..., 0, :]
            written.append(last)
        return torch.cat(written, -2)

    [(stage, case, text)] = told(WRITE, write)
    assert (stage, case) == ("gradient", "gradient")
    assert "x[...] = ..., +=" in text and "inplace" not in text


def test_work_is_products_and_numbers_and_no_views():
    def steps(a, b):
        (a @ b).mT[0].reshape(-1)  # 4 x 5 x 6 products; views
        torch.einsum("ij,jk->ik", a, b)  # as many
        return (a[:, :, None] * b).sum(1)  # 4 x 5 x 6 numbers made, 4 x 6 more

    exact, less = (within(steps, "function", 10**6, 10**6, work) for work in (384, 383))
    exact(torch.ones(4, 5), torch.ones(5, 6))
    with pytest.raises(Unfit, match="computes 384 products and numbers, where 383"):
        less(torch.ones(4, 5), torch.ones(5, 6))


def test_a_module_is_bounded_too():
    class GraphAttention(LAYER.reference):
        def forward(self, x, edges):
            self.query(x)[:, None] + self.key(x)
            return super().forward(x, edges)

    [(stage, case, text)] = told(LAYER, GraphAttention)
    assert (stage, case) == ("unfit", "400 nodes") and text.startswith("Your module makes a tensor of [400")


def test_a_loop_over_heads_is_allowed():
    class GraphAttention(LAYER.reference):
        def forward(self, x, edges):
            query, key = (self.split(linear(x)) for linear in (self.query, self.key))
            contexts, weights = [], []
            for head, a in enumerate(self.a):
                scores = (F.leaky_relu(query[edges[1], head] + key[edges[0], head], 0.2) * a).sum(-1)
                weights.append(SOFTMAX.reference(scores, edges[1], torch.tensor(len(x))))
                carried = weights[-1][:, None] * key[edges[0], head]
                contexts.append(torch.zeros_like(key[:, head]).index_add(0, edges[1], carried))
            return torch.cat(contexts, dim=-1), torch.stack(weights, dim=-1)

    assert told(LAYER, GraphAttention) == []


@pytest.mark.parametrize("exercise", [SOFTMAX, GAT, SCORES, LAYER], ids=lambda one: one.name)
def test_the_reference_stays_far_from_its_bounds(exercise):
    effort = exercise.asks.effort
    half = Effort(effort.entries // 2, effort.operations // 2)
    assert told(replace(exercise, asks=replace(exercise.asks, effort=half)), exercise.reference) == []


def test_a_bound_is_plain_data_and_leaves_the_answer_as_it_is():
    def double(x):
        return 2 * x

    use = Function(Effort(6, 1)).use(None)
    assert use == {"as": "function", "effort": {"entries": 6, "operations": 1}}
    assert torch.equal(applied(double, use, {})(torch.ones(2, 3)), 2 * torch.ones(2, 3))
    assert Function().use(None) == {"as": "function"}
    assert "effort" not in Module(("weight",)).use(LAYER.cases[0])


def test_a_gradient_that_reaches_a_constant_is_told():
    def policy_loss(logits, action, returns, alive, cut=lambda x: x):
        log_probs = logits.log_softmax(-1).gather(-1, action[..., None]).squeeze(-1)
        baseline = torch.where(alive, returns, 0.0).sum() / alive.sum()
        gain = torch.where(alive, cut(returns - baseline), 0.0)
        return -torch.where(alive, log_probs * gain, 0.0).sum() / alive.shape[1]

    found = told(LOSS, policy_loss)
    assert [case for _, case, _ in found] == ["gradient", "gradient, nothing behind the ends"]
    for stage, _, text in found:
        assert stage == "gradient" and "a gradient reaches returns, which counts as" in text
    assert told(LOSS, lambda *inputs: policy_loss(*inputs, cut=torch.Tensor.detach)) == []


def test_of_the_gradient_of_a_setting_nothing_is_asked():
    rightly = RETURNS.reference
    assert told(RETURNS, lambda rewards, discount, done: rightly(rewards, discount.detach(), done)) == []
    [(stage, _, text)] = told(RETURNS, lambda rewards, *rest: rightly(rewards.detach(), *rest))
    assert stage == "gradient" and "no gradient reaches rewards" in text


def test_a_setting_has_no_gradient_that_a_loop_in_place_would_break():
    def returns(rewards, discount, done):
        found = rewards.clone()
        for t in reversed(range(len(rewards) - 1)):
            found[t] = rewards[t] + discount * found[t + 1] * ~done[t]
        return found

    assert told(RETURNS, returns) == []
    [(stage, _, text)] = told(replace(RETURNS, settings=()), returns)
    assert stage == "gradient" and "a tensor is written into that an earlier step has read" in text


def test_a_setting_changed_in_place_is_told_all_the_same():
    def returns(rewards, discount, done):
        return RETURNS.reference(rewards, discount.clone(), done) + 0 * discount.mul_(0.5)

    assert {stage for stage, *_ in told(RETURNS, returns)} == {"inputs"}


def test_a_gradient_through_steps_that_do_not_count_is_told_where_it_is_nan():
    def policy_loss(logits, action, returns, alive):
        log_probs = logits.log_softmax(-1).gather(-1, action[..., None]).squeeze(-1)
        baseline = returns.masked_fill(~alive, 0.0).sum() / alive.sum()
        terms = log_probs * (returns - baseline).detach()
        return -terms.masked_fill(~alive, 0.0).sum() / alive.shape[1]

    [(stage, case, text)] = told(LOSS, policy_loss)
    assert (stage, case) == ("gradient", "gradient, nothing behind the ends") and "NaN or infinite" in text


def test_a_loss_without_a_gradient_is_told_as_before():
    found = told(LOSS, lambda *inputs: LOSS.reference(*inputs).detach())
    assert len(found) == 2
    assert all(stage == "gradient" and "no gradient reaches logits" in text for stage, _, text in found)
