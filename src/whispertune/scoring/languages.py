"""Whisper's languages by name: OpenAI's API writes `english` where everything else writes `en`."""

import difflib
from functools import cache

from whispertune.errors import UsageError
from whispertune.scoring.normalize import normalizer_for

_NAMES = """
    en:english zh:chinese de:german es:spanish ru:russian ko:korean fr:french ja:japanese pt:portuguese
    tr:turkish pl:polish ca:catalan nl:dutch ar:arabic sv:swedish it:italian id:indonesian hi:hindi
    fi:finnish vi:vietnamese he:hebrew uk:ukrainian el:greek ms:malay cs:czech ro:romanian da:danish
    hu:hungarian ta:tamil no:norwegian th:thai ur:urdu hr:croatian bg:bulgarian lt:lithuanian la:latin
    mi:maori ml:malayalam cy:welsh sk:slovak te:telugu fa:persian lv:latvian bn:bengali sr:serbian
    az:azerbaijani sl:slovenian kn:kannada et:estonian mk:macedonian br:breton eu:basque is:icelandic
    hy:armenian ne:nepali mn:mongolian bs:bosnian kk:kazakh sq:albanian sw:swahili gl:galician
    mr:marathi pa:punjabi si:sinhala km:khmer sn:shona yo:yoruba so:somali af:afrikaans oc:occitan
    ka:georgian be:belarusian tg:tajik sd:sindhi gu:gujarati am:amharic yi:yiddish lo:lao uz:uzbek
    fo:faroese ht:haitian_creole ps:pashto tk:turkmen nn:nynorsk mt:maltese sa:sanskrit lb:luxembourgish
    my:myanmar bo:tibetan tl:tagalog mg:malagasy as:assamese tt:tatar haw:hawaiian ln:lingala ha:hausa
    ba:bashkir jw:javanese su:sundanese yue:cantonese my:burmese ca:valencian nl:flemish ht:haitian
    lb:letzeburgesch ps:pushto pa:panjabi ro:moldavian ro:moldovan si:sinhalese es:castilian zh:mandarin
"""
_CODES = {name.replace("_", " "): code for code, _, name in (x.partition(":") for x in _NAMES.split())}
"""Names and their aliases of openai/whisper's tokenizer.py, to codes."""


@cache
def language_code(name: str) -> str:
    """`en` for `english`, `English` and `en`. Raises UsageError for what is no language code."""
    code = _CODES.get(name.strip().lower(), name.strip())
    normalizer_for(code)
    return code


@cache
def whisper_code(name: str) -> str:
    """Whisper's code for a code, a tag or an English name: `en` for `EN`, `en-US` and `English`.

    Raises UsageError, with the nearest, for a language that Whisper lacks.
    """
    word = name.strip().lower().replace("_", "-")
    known = {**{code: code for code in _CODES.values()}, **_CODES}
    for each in (word, word.replace("-", " "), word.partition("-")[0]):
        if each in known:
            return known[each]
    near = difflib.get_close_matches(word, known, 1, 0.4)
    hint = f"did you mean {near[0]}?" if near else "give a code such as cs, or an English name such as czech"
    raise UsageError(f"Whisper has no language '{name}'", hint)
