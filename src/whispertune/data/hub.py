"""A data set on the Hub, downloaded whole or read over the network row by row.

Streaming reads Parquet where it lies (every open set has a Parquet copy in its branch
`refs/convert/parquet`), so no script of the set is ever run and the `datasets` package is not needed.
"""

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import pyarrow as pa
import pyarrow.parquet as pq

from whispertune.corpus import require_space
from whispertune.data.sources import (
    METADATA,
    SPLIT_NAMES,
    Source,
    Table,
    batches,
    read_folder,
    read_parquet,
    split_in,
    table_rows,
)
from whispertune.errors import DataError

_ID = re.compile(r"^\w[\w.-]*/\w[\w.-]*(?::[\w.-]+(?:/[\w.-]+)?)?$")
CONVERTED = "refs/convert/parquet"
"""The branch where the Hub itself keeps each set as Parquet: `config/split/0000.parquet`."""


def is_hub_id(source: str) -> bool:
    """`owner/name`, `owner/name:config` or `owner/name:config/split`."""
    return bool(_ID.match(source))


def read_hub(source: str, *, streaming: bool = False, speaker_column: str | None = None) -> Source:
    """Rows of a data set on the Hub; with `streaming` nothing is stored but the corpus.

    Raises DataError, in one line, when the Hub cannot be reached, has no such set, or the set has no readable
    form.
    """
    with _plainly(source):
        return _read(source, streaming, speaker_column)


@contextlib.contextmanager
def _plainly(source: str) -> Iterator[None]:
    """What huggingface_hub raises, as one line of ours."""
    from huggingface_hub import errors

    # huggingface_hub 1 raises errors of its HTTP library for a network that fails, older ones an OSError.
    unreachable = (OSError, getattr(errors, "HTTPError", OSError))
    repo = source.partition(":")[0]
    try:
        yield
    except errors.GatedRepoError as error:
        raise DataError(
            f"{repo} on the Hub asks for its terms to be accepted",
            "accept them on its page, then run `hf auth login`",
        ) from error
    except (errors.RepositoryNotFoundError, errors.HFValidationError) as error:
        raise DataError(
            f"there is no folder {source} here, and no data set {repo} on the Hub that you may read",
            "check the name; for a private set run `hf auth login`",
        ) from error
    except unreachable as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise DataError(
            f"there is no folder {source} here, and the Hub cannot be reached for {repo}: {reason}",
            "check the path; or go online",
        ) from error


def _read(source: str, streaming: bool, speaker_column: str | None) -> Source:
    from huggingface_hub import snapshot_download
    from huggingface_hub.constants import HF_HUB_CACHE
    from huggingface_hub.errors import RevisionNotFoundError

    repo, _, config = source.partition(":")
    revision: str | None = None
    sizes = _files(repo, None)
    chosen = _choose(repo, sizes, config)
    if not chosen or (streaming and not chosen[0].endswith(".parquet")):
        try:
            revision, sizes = CONVERTED, _files(repo, CONVERTED)
        except RevisionNotFoundError:
            sizes = {}
        chosen = _choose(repo, sizes, config)
    if not chosen:
        of = f"configuration '{config}' of {repo}" if config else repo
        raise DataError(f"{of} on the Hub has neither Parquet nor {' / '.join(METADATA)}")
    size = sum(sizes[name] for name in chosen)
    if streaming:
        return _stream(source, revision, chosen, size, speaker_column)
    require_space(Path(HF_HUB_CACHE), size, "the download")
    # Names are matched as patterns: a bracket in one would be a set of characters.
    patterns = [re.sub(r"[\[*?]", lambda m: f"[{m[0]}]", name) for name in chosen]
    root = Path(snapshot_download(repo, repo_type="dataset", revision=revision, allow_patterns=patterns))
    if chosen[0].endswith(".parquet"):
        return read_parquet(root, speaker_column, [root / name for name in chosen])
    top = next(PurePosixPath(name).parent for name in chosen if PurePosixPath(name).name in METADATA)
    return read_folder(root / (top.parent if top.name in SPLIT_NAMES else top), speaker_column)


def _files(repo: str, revision: str | None) -> dict[str, int]:
    """Files of the set and their sizes in bytes."""
    from huggingface_hub import HfApi

    # Listing the tree would retry for half a minute where there is no network; this fails at once.
    info = HfApi().dataset_info(repo, revision=revision, files_metadata=True, timeout=20)
    return {file.rfilename: file.size or 0 for file in info.siblings or []}


def _choose(repo: str, names: dict[str, int], config: str) -> list[str]:
    """The Parquet files that are meant, or else everything beside a metadata file; sorted."""
    folders = set(config.split("/")) if config else set()
    inside = [n for n in names if folders <= set(PurePosixPath(n).parts[:-1])]
    if parquet := sorted(n for n in inside if n.endswith(".parquet")):
        tops = {PurePosixPath(n).parts[0] for n in parquet if "/" in n} - {"data"} - set(SPLIT_NAMES)
        if not config and len(tops) > 1:
            shown = ", ".join(sorted(tops)[:12]) + (" …" if len(tops) > 12 else "")
            raise DataError(
                f"{repo} has {len(tops)} configurations: {shown}", f"name one: {repo}:{min(tops)}"
            )
        return parquet
    if any(PurePosixPath(n).name in METADATA for n in inside):
        return sorted(n for n in inside if not PurePosixPath(n).name.startswith("."))
    return []


def _stream(
    source: str, revision: str | None, names: list[str], size: int, speaker_column: str | None
) -> Source:
    from huggingface_hub import HfFileSystem

    files = HfFileSystem()
    at = f"datasets/{source.partition(':')[0]}" + (f"@{revision.replace('/', '%2F')}" if revision else "")
    total = 0
    for name in names:
        with files.open(f"{at}/{name}") as file:
            total += pq.read_metadata(file).num_rows

    def remote(name: str) -> Iterator[pa.RecordBatch]:
        # Read later than `read_hub` returns: the network may fail here, too.
        with _plainly(source), files.open(f"{at}/{name}") as file:
            yield from batches(file)

    tables: list[Table] = [(remote(name), name, split_in(PurePosixPath(name)), None) for name in names]
    return Source(table_rows(tables, speaker_column), total, size)
