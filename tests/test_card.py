"""The card of an exported model: verdict first, nothing of the machine in it, nothing of data obeyed."""

from pathlib import Path

import pytest
from test_report import RIGHT, WRONG, report

from whispertune.ship.card import card, unjudged_card


@pytest.fixture
def worse(tmp_path: Path):
    """Better on the test clips, worse on the guard."""
    found = report(tmp_path, (WRONG, RIGHT), (RIGHT, WRONG), notes=["The speech is synthetic."])
    found["settings"]["corpus"] |= {"clips": 40, "hours": 0.5, "fingerprint": "c0"}
    return found


def front(text: str) -> dict[str, str]:
    lines = text.split("---\n")[1].splitlines()
    return dict(line.split(": ", 1) for line in lines)


def test_a_harmful_model_says_so_first(worse):
    text = card(worse)
    title, sentence = text.split("---\n")[2].strip().split("\n\n")[:2]
    assert title == "# m, fine-tuned on clips"
    assert sentence.startswith("**WORSE: it got better on your clips (these 30 clips, 50.0 → 0.0 % WER")
    assert sentence.endswith("Keep the base model.**")
    assert "- general got worse: 0.0 → 50.0 %" in text and "(failed)" in text
    assert "- The speech is synthetic." in text
    assert "| test | 30 | 120 | 50.0 % | 0.0 % |" in text


@pytest.mark.parametrize(
    ("name", "base", "title"),
    [
        ("tiny.en", '"openai/whisper-tiny.en"', "tiny.en"),
        ("large-v3-turbo", '"openai/whisper-large-v3-turbo"', "large-v3-turbo"),
        ("me/my-whisper", '"me/my-whisper"', "me/my-whisper"),
        ("/home/ana/models/mine", None, "mine"),
    ],
)
def test_the_base_model_is_named_and_no_folder_of_this_machine(worse, name, base, title):
    worse["settings"]["model"]["name"] = name
    text = card(worse)
    assert front(text).get("base_model") == base
    assert f"# {title}, fine-tuned on" in text and "/home" not in text


def test_a_folder_that_looks_like_a_hub_id_is_none(worse, tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs/mine").mkdir(parents=True)
    worse["settings"]["model"]["name"] = "runs/mine"
    assert "base_model" not in front(card(worse))


def test_texts_from_data_are_no_markup(worse):
    worse["notes"] = ["<script>alert(1)</script> *bold* [link](x) | `code`\n# heading"]
    assert r"- \<script\>alert(1)\</script\> \*bold\* \[link\](x) \| \`code\` \# heading" in card(worse)


def test_what_was_not_checked_is_said(worse):
    text = card(worse | {"guards": [], "probes": [], "notes": []})
    assert "- Not checked: no guard was given." in text and "## Caveats" not in text


def test_who_vouches_for_the_texts(worse):
    worse["settings"]["corpus"]["provenance"] = {"published": 1200, "model": 3}
    assert "- who vouches for the texts: 1,200 published, 3 model" in card(worse)


def test_a_model_that_nobody_judged_says_so():
    assert unjudged_card("/a/b/mine", 40).startswith("# Step 40 of mine\n")
    assert "Nobody has judged it" in unjudged_card("/a/b/mine", None)
    assert unjudged_card("/a/b/mine", None).startswith("# mine, not finished\n")
