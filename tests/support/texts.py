"""Seeded strings that try a tokenizer: scripts, code, emoji, digits, white space, joined at random."""

from __future__ import annotations

import random

PIECES = (
    "Hello world",
    "it's we'll I'D",
    "naïve café",
    "Ünïcödé",
    "русский текст",
    "中文字符测试",
    "日本語のテキスト",
    "한국어",
    "العربية",
    "हिन्दी",
    "עברית",
    "ไทย",
    "Ελληνικά",
    "👍🏽",
    "👨\u200d👩\u200d👧\u200d👦",
    "🇫🇷",
    "😀",
    "é",
    "Å",
    "ﬁ",
    "def f(x):\n    return x**2\n",
    "for (int i = 0; i < n; ++i) {\n\t\ta[i] += 1;\n}\n",
    '<div class="a">&amp;</div>',
    "SELECT * FROM t WHERE a >= 10;",
    "https://example.org/a?b=c&d=%20",
    "0",
    "7",
    "1234567890",
    "3.14159",
    "٣٤٥",
    "½²",
    " ",
    "  ",
    "   ",
    "\t",
    "\n",
    "\n\n",
    "\r\n",
    " \n ",
    "\xa0",
    "\u3000",
    "\u200b",
    "\ufeff",
    "!",
    "...",
    "'",
    '"',
    "—",
    "$€£",
    "#@&",
    "|",
    "\\",
    "\x00",
    "\x7f",
    "\u0378",
    "ｆｕｌｌ Ｗｉｄｔｈ",
    "Ça où ÉTÉ Straße İstanbul",
    "e\u0301 A\u030a o\u0308\u0323",  # not composed
    "\u1112\u1161\u11ab\u1100\u1173\u11af",  # Hangul by its parts
    "Привет, МИР! Ёлка",
    "Ἀθῆναι ΚΑΛΗΜΈΡΑ",
    "مَرْحَبًا بِكُمْ",
    "שָׁלוֹם עוֹלָם",
    "नमस्ते दुनिया १२३",
    "สวัสดีชาวโลก ๑๒๓",
    "你好，世界！他说：“好。”",
    "こんにちは、カタカナ。",
    "안녕하세요 세계",
    "🏳️\u200d🌈👩🏽\u200d💻",
    "🇩🇪🇯🇵🇧🇷🇺",
    "1️⃣#️⃣",
    'fn main() -> Result<(), Box<dyn Error>> {\n    println!("{x:?}");\n}\n',
    "const f = async (a) => `${a ?? 'n/a'}`;\r\n",
    "#include <stdio.h>\n\n/* *//\n",
    '\tif err != nil {\n\t\treturn nil, fmt.Errorf("%w", err)\n\t}\n',
    "SnakeCase camelCase HTTPServer v1.2.3-rc4 0x1F 1e-9",
    "\v\f\x1c\x85\u2028\u2029",
    "\u2000\u2003\u205f\u202f",
    "\x01\x1b[0m\x9f",
    "\u202eabc\u2066",
    "\ufffd\ufffe",
    "12345678901234567890",
    "１２３",
    "Ⅻ①㊿",
    "𝔘𝔫𝔦",
    "𐍈",
    "the",
    " the",
    "A",
    "z",
)


# How special tokens are spelled; a tokenizer that has one takes it for the token.
SPELLED = (
    "[INST] <<SYS>> [/INST]",
    "<|im_start|>user\n",
    "<|endoftext|>",
    " <|endoftext|>  \n",
    "<end_of_turn>\n<start_of_turn>model\n",
    "</s><s>",
    "<unk> ",
    "<0x41>",
    "<think>\n\n</think>",
    "<|im_sta",
)

# Long runs of one thing; slow rules and limits of nesting show on them.
RUNS = tuple(unit * 3000 for unit in ("a", " ", "\n", "7", "é", "中", "ab ", " \n", "!", "👍", "\u0301", "▁"))


def texts(seed: int, count: int, pieces: tuple[str, ...] = PIECES) -> list[str]:
    """`count` strings of one to twelve pieces each."""
    rng = random.Random(seed)
    return ["".join(rng.choices(pieces, k=rng.randint(1, 12))) for _ in range(count)]
