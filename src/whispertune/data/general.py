"""General speech to guard with: the first test recordings of FLEURS in a language, fetched once.

FLEURS (Conneau et al. 2022, arXiv 2205.12446; CC-BY-4.0) is read Wikipedia sentences in 102 languages by
several speakers each. It names no speakers, so its clips are drawn singly.
"""

import dataclasses
from collections.abc import Callable
from pathlib import Path

from whispertune.corpus import is_corpus
from whispertune.data.importers import import_rows, read_source
from whispertune.data.remembered import cache_folder
from whispertune.errors import DataError

CLIPS = 100
"""About 17 minutes and 2,000 words: enough to see a change of two points, and minutes to decode on a CPU."""
ABOUT = f"{CLIPS} recordings of general speech from FLEURS (CC-BY-4.0, tens of MB, once)"

FLEURS = "google/fleurs"
_NAMES = """
    af_za am_et ar_eg as_in az_az be_by bg_bg bn_in bs_ba ca_es cs_cz cy_gb da_dk de_de el_gr en_us es_419
    et_ee fa_ir fi_fi fr_fr gl_es gu_in ha_ng he_il hi_in hr_hr hu_hu hy_am id_id is_is it_it ja_jp ka_ge
    kk_kz km_kh kn_in ko_kr lb_lu ln_cd lo_la lt_lt lv_lv mi_nz mk_mk ml_in mn_mn mr_in ms_my mt_mt my_mm
    ne_np nl_nl oc_fr pa_in pl_pl ps_af pt_br ro_ro ru_ru sd_in sk_sk sl_si sn_zw so_so sr_rs sv_se sw_ke
    ta_in te_in tg_tj th_th tr_tr uk_ua ur_pk uz_uz vi_vn yo_ng
"""
_CONFIGS = {name.partition("_")[0]: name for name in _NAMES.split()} | {
    "zh": "cmn_hans_cn",
    "yue": "yue_hant_hk",
    "no": "nb_no",
    "nn": "nb_no",
    "tl": "fil_ph",
    "jw": "jv_id",
}
"""Whisper's language codes to FLEURS' names."""


def general_speech(language: str, progress: Callable[[int, int | None], None] | None = None) -> Path:
    """The corpus `fleurs-LANGUAGE`, all of it test; fetched where it is not here yet.

    Args:
        language: Whisper's code.

    Raises:
        DataError: FLEURS lacks the language, or cannot be reached.
    """
    if language not in _CONFIGS:
        raise DataError(f"FLEURS has no speech in '{language}'", "--guard FOLDER names speech of your own")
    folder = cache_folder() / "corpora" / "general" / f"fleurs-{language}"
    if not is_corpus(folder):
        name = f"{FLEURS}:{_CONFIGS[language]}/test"
        try:
            source = read_source(name, streaming=True, limit=CLIPS)
        except DataError as error:  # nobody asked for a folder of that name
            reason = error.what.rpartition(" here, and ")[2]
            raise DataError(reason, "go online once, or --guard FOLDER names speech of your own") from error
        # Its own language column has names in words, and all of it is test.
        rows = (dataclasses.replace(row, language=language, split="test") for row in source.rows)
        folder.parent.mkdir(parents=True, exist_ok=True)
        import_rows(dataclasses.replace(source, rows=rows), name, folder, progress=progress)
    return folder
