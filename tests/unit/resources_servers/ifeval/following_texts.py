"""For each of the 25 kinds of instruction a text that follows it, and a check whether a text follows an instruction."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rollyard.resources_servers.ifeval.app import outcome
from rollyard.resources_servers.ifeval.instruction import instruction

SAMPLES = {
    "ar": "هذا نص قصير مكتوب باللغة العربية عن الطقس الجميل اليوم في المدينة",
    "bg": "Това е кратък текст на български език за хубавото време днес и за хората в града",
    "bn": "এটি বাংলা ভাষায় লেখা একটি ছোট লেখা, আজকের সুন্দর আবহাওয়া নিয়ে",
    "de": "Das ist ein kurzer deutscher Text über das schöne Wetter, das wir heute in der Stadt haben",
    "fa": "این یک متن کوتاه به زبان فارسی درباره هوای خوب امروز است که در شهر نوشته شده است",
    "fi": "Tämä on lyhyt suomenkielinen teksti, joka kertoo kauniista säästä kaupungissa tänään",
    "gu": "આ ગુજરાતી ભાષામાં લખાયેલું એક નાનું લખાણ છે જે આજના સુંદર હવામાન વિશે છે",
    "hi": "यह हिंदी भाषा में लिखा गया एक छोटा सा लेख है जो आज के अच्छे मौसम के बारे में है",
    "it": "Questo è un breve testo in lingua italiana sul bel tempo che abbiamo oggi nella nostra città",
    "kn": "ಇದು ಕನ್ನಡ ಭಾಷೆಯಲ್ಲಿ ಬರೆದ ಒಂದು ಸಣ್ಣ ಬರಹ, ಇಂದಿನ ಸುಂದರ ಹವಾಮಾನದ ಬಗ್ಗೆ",
    "ko": "이것은 오늘 도시의 아름다운 날씨에 대하여 한국어로 쓴 짧은 글입니다",
    "mr": "हा मराठी भाषेत लिहिलेला एक छोटा मजकूर आहे आणि तो आजच्या चांगल्या हवामानाबद्दल आहे",
    "ne": "यो नेपाली भाषामा लेखिएको एउटा छोटो लेख हो जुन आजको राम्रो मौसमको बारेमा छ",
    "pa": "ਇਹ ਪੰਜਾਬੀ ਭਾਸ਼ਾ ਵਿੱਚ ਲਿਖਿਆ ਇੱਕ ਛੋਟਾ ਲੇਖ ਹੈ ਜੋ ਅੱਜ ਦੇ ਚੰਗੇ ਮੌਸਮ ਬਾਰੇ ਹੈ",
    "pt": "Este é um pequeno texto em língua portuguesa sobre o bom tempo que não tivemos ontem na cidade",
    "ru": "Это короткий текст на русском языке о хорошей погоде, которая стоит сегодня в городе",
    "sw": "Haya ni maandishi mafupi ya lugha ya Kiswahili kuhusu hali nzuri ya hewa ya leo katika mji",
    "ta": "இது இன்றைய அழகான வானிலை பற்றி தமிழ் மொழியில் எழுதப்பட்ட ஒரு சிறிய உரை",
    "te": "ఇది ఈ రోజు అందమైన వాతావరణం గురించి తెలుగు భాషలో రాసిన ఒక చిన్న వ్యాసం",
    "th": "นี่คือข้อความสั้น ๆ ที่เขียนเป็นภาษาไทยเกี่ยวกับอากาศที่ดีในวันนี้",
    "ur": "یہ اردو زبان میں لکھی گئی ایک مختصر تحریر ہے جو آج کے اچھے موسم کے بارے میں ہے",
    "vi": "Đây là một đoạn văn ngắn viết bằng tiếng Việt về thời tiết đẹp của ngày hôm nay trong thành phố",
}
ENGLISH = "this is a short english text about the fine weather that we have in the town today"


def follows(kind: str, text: str, **kwargs: Any) -> tuple[bool, bool]:
    """Whether the text follows the instruction (strictly, loosely)."""
    result = outcome(kind, instruction(kind, kwargs), text)
    return result.strict, result.loose


COUNTED = {
    "frequency": ("keyword", "relation", "frequency"),
    "letter_frequency": ("letter", "let_relation", "let_frequency"),
    "capital_word_frequency": ("WORD", "capital_relation", "capital_frequency"),
    "number_words": ("word", "relation", "num_words"),
    "number_sentences": ("This is one.", "relation", "num_sentences"),
}
FOLLOWING: dict[str, Callable[[dict[str, Any]], str]] = {
    "existence": lambda kwargs: " ".join(map(str, kwargs["keywords"])),
    "forbidden_words": lambda kwargs: "zzz",
    "response_language": lambda kwargs: SAMPLES[kwargs["language"]],
    "english_capital": lambda kwargs: ENGLISH.upper(),
    "english_lowercase": lambda kwargs: ENGLISH,
    "no_comma": lambda kwargs: "no such thing",
    "number_paragraphs": lambda kwargs: "\n***\n".join(["text"] * kwargs["num_paragraphs"]),
    "nth_paragraph_first_word": lambda kwargs: "\n\n".join([f"{kwargs['first_word']} text"] * kwargs["num_paragraphs"]),
    "end_checker": lambda kwargs: f"text {kwargs['end_phrase']}",
    "quotation": lambda kwargs: '"text"',
    "repeat_prompt": lambda kwargs: f"{kwargs['prompt_to_repeat']} answer",
    "two_responses": lambda kwargs: "one\n******\ntwo",
    "number_placeholders": lambda kwargs: "[name] " * int(kwargs["num_placeholders"]),
    "postscript": lambda kwargs: f"text\n{kwargs['postscript_marker']} more",
    "number_bullet_lists": lambda kwargs: "* point\n" * int(kwargs["num_bullets"]),
    "constrained_response": lambda kwargs: "My answer is maybe.",
    "number_highlighted_sections": lambda kwargs: "*part* " * int(kwargs["num_highlights"]),
    "multiple_sections": lambda kwargs: "".join(
        f"{kwargs['section_spliter']} {number + 1}\ntext\n" for number in range(kwargs["num_sections"])
    ),
    "title": lambda kwargs: "<<title>>\ntext",
    "json_format": lambda kwargs: '```json\n{"a": 1}\n```',
}


def text_that_follows(kind: str, kwargs: dict[str, Any]) -> str:
    """A text that follows the instruction strictly."""
    name = kind.partition(":")[2]
    if name not in COUNTED:
        return FOLLOWING[name](kwargs)
    word, relation, times = COUNTED[name]
    return " ".join([kwargs.get(word, word)] * kwargs[times]) if kwargs[relation] == "at least" else "zzz"
