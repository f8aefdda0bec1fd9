//! Words of texts, as the published expressions cut them.

use super::*;
use proptest::prelude::*;

/// As the expressions cut them in Hugging Face's `tokenizers` 0.23.3, with | between words.
const WORDS: &[(&str, Split, &str)] = &[
    (
        "gpt2",
        gpt2,
        "Hello|,| world|!| It|'s| 2024|'s|  | best|\n\n| day|\t|!",
    ),
    ("gpt2", gpt2, "don|'t| DON|'|T| we|'|LL| '|S| '|ſx| I|'|Ve"),
    ("gpt2", gpt2, " | a|  | b| \n| c|\r\n\r\n | d|  "),
    ("gpt2", gpt2, "１２३4| x|12345678| ²½| Ⅷ"),
    (
        "gpt2",
        gpt2,
        "naïve| e|\u{301}|a|\u{301}|b| ก|็|ด|ี| หน|ึ่|ง| ह|ि|न|्|द|ी",
    ),
    ("gpt2", gpt2, "HTTPServer| isOK| ABCdef| AbcDEF| ǅaǅ| ªº"),
    ("gpt2", gpt2, "a|/|b|//|\n|/|c| !!|\n|\n|/| x"),
    (
        "gpt2",
        gpt2,
        "日本語|123|テスト|😀👍🏽| |\u{3000}|x|\u{A0}|y|\u{2028}|z",
    ),
    ("gpt2", gpt2, "\u{301}|a| \u{301}| 1|\u{301}"),
    ("gpt2", gpt2, " \t\n"),
    ("gpt2", gpt2, "\n\n"),
    ("gpt2", gpt2, "   "),
    ("gpt2", gpt2, "x|   "),
    ("gpt2", gpt2, "'"),
    ("gpt2", gpt2, "'| s"),
    ("gpt2", gpt2, "a|'|b|'|c|'''|d"),
    ("gpt2", gpt2, " '| | '|re"),
    ("gpt2", gpt2, "\r\r|\n|a"),
    ("gpt2", gpt2, "…—“|q|”| €|5| +=-|1"),
    ("gpt2", gpt2, "ʰA| ʰa| ＡＢ"),
    (
        "single_digits",
        single_digits,
        "Hello|,| world|!| It|'s| |2|0|2|4|'s|  | best|\n\n| day|\t|!",
    ),
    (
        "single_digits",
        single_digits,
        "don|'t| DON|'|T| we|'|LL| '|S| '|ſx| I|'|Ve",
    ),
    (
        "single_digits",
        single_digits,
        " | a|  | b| \n| c|\r\n\r\n | d|  ",
    ),
    (
        "single_digits",
        single_digits,
        "１|２|३|4| x|1|2|3|4|5|6|7|8| |²|½| |Ⅷ",
    ),
    (
        "single_digits",
        single_digits,
        "naïve| e|\u{301}|a|\u{301}|b| ก|็|ด|ี| หน|ึ่|ง| ह|ि|न|्|द|ी",
    ),
    (
        "single_digits",
        single_digits,
        "HTTPServer| isOK| ABCdef| AbcDEF| ǅaǅ| ªº",
    ),
    (
        "single_digits",
        single_digits,
        "a|/|b|//|\n|/|c| !!|\n|\n|/| x",
    ),
    (
        "single_digits",
        single_digits,
        "日本語|1|2|3|テスト|😀👍🏽| |\u{3000}|x|\u{A0}|y|\u{2028}|z",
    ),
    (
        "single_digits",
        single_digits,
        "\u{301}|a| \u{301}| |1|\u{301}",
    ),
    ("single_digits", single_digits, " \t\n"),
    ("single_digits", single_digits, "\n\n"),
    ("single_digits", single_digits, "   "),
    ("single_digits", single_digits, "x|   "),
    ("single_digits", single_digits, "'"),
    ("single_digits", single_digits, "'| s"),
    ("single_digits", single_digits, "a|'|b|'|c|'''|d"),
    ("single_digits", single_digits, " '| | '|re"),
    ("single_digits", single_digits, "\r\r|\n|a"),
    ("single_digits", single_digits, "…—“|q|”| €|5| +=-|1"),
    ("single_digits", single_digits, "ʰA| ʰa| ＡＢ"),
    (
        "llama3",
        llama3,
        "Hello|,| world|!| It|'s| |202|4|'s|  | best|\n\n| day|\t|!",
    ),
    ("llama3", llama3, "don|'t| DON|'T| we|'LL| '|S| '|ſx| I|'Ve"),
    ("llama3", llama3, " | a|  | b| \n| c|\r\n\r\n| | d|  "),
    ("llama3", llama3, "１２३|4| x|123|456|78| |²½| |Ⅷ"),
    (
        "llama3",
        llama3,
        "naïve| e|\u{301}a|\u{301}b| ก|็ด|ี| หน|ึ่|ง| ह|िन|्द|ी",
    ),
    (
        "llama3",
        llama3,
        "HTTPServer| isOK| ABCdef| AbcDEF| ǅaǅ| ªº",
    ),
    ("llama3", llama3, "a|/b|//\n|/c| !!\n\n|/| x"),
    (
        "llama3",
        llama3,
        "日本語|123|テスト|😀👍🏽| |\u{3000}x|\u{A0}y|\u{2028}z",
    ),
    ("llama3", llama3, "\u{301}a| \u{301}| |1|\u{301}"),
    ("llama3", llama3, " \t\n"),
    ("llama3", llama3, "\n\n"),
    ("llama3", llama3, "   "),
    ("llama3", llama3, "x|   "),
    ("llama3", llama3, "'"),
    ("llama3", llama3, "'| s"),
    ("llama3", llama3, "a|'b|'c|'''|d"),
    ("llama3", llama3, " '| | '|re"),
    ("llama3", llama3, "\r\r\n|a"),
    ("llama3", llama3, "…—“|q|”| €|5| +=-|1"),
    ("llama3", llama3, "ʰA| ʰa| ＡＢ"),
    (
        "qwen2",
        qwen2,
        "Hello|,| world|!| It|'s| |2|0|2|4|'s|  | best|\n\n| day|\t|!",
    ),
    ("qwen2", qwen2, "don|'t| DON|'T| we|'LL| '|S| '|ſx| I|'Ve"),
    ("qwen2", qwen2, " | a|  | b| \n| c|\r\n\r\n| | d|  "),
    ("qwen2", qwen2, "１|２|३|4| x|1|2|3|4|5|6|7|8| |²|½| |Ⅷ"),
    (
        "qwen2",
        qwen2,
        "naïve| e|\u{301}a|\u{301}b| ก|็ด|ี| หน|ึ่|ง| ह|िन|्द|ी",
    ),
    ("qwen2", qwen2, "HTTPServer| isOK| ABCdef| AbcDEF| ǅaǅ| ªº"),
    ("qwen2", qwen2, "a|/b|//\n|/c| !!\n\n|/| x"),
    (
        "qwen2",
        qwen2,
        "日本語|1|2|3|テスト|😀👍🏽| |\u{3000}x|\u{A0}y|\u{2028}z",
    ),
    ("qwen2", qwen2, "\u{301}a| \u{301}| |1|\u{301}"),
    ("qwen2", qwen2, " \t\n"),
    ("qwen2", qwen2, "\n\n"),
    ("qwen2", qwen2, "   "),
    ("qwen2", qwen2, "x|   "),
    ("qwen2", qwen2, "'"),
    ("qwen2", qwen2, "'| s"),
    ("qwen2", qwen2, "a|'b|'c|'''|d"),
    ("qwen2", qwen2, " '| | '|re"),
    ("qwen2", qwen2, "\r\r\n|a"),
    ("qwen2", qwen2, "…—“|q|”| €|5| +=-|1"),
    ("qwen2", qwen2, "ʰA| ʰa| ＡＢ"),
    (
        "qwen35",
        qwen35,
        "Hello|,| world|!| It|'s| |2|0|2|4|'s|  | best|\n\n| day|\t|!",
    ),
    ("qwen35", qwen35, "don|'t| DON|'T| we|'LL| '|S| '|ſx| I|'Ve"),
    ("qwen35", qwen35, " | a|  | b| \n| c|\r\n\r\n| | d|  "),
    ("qwen35", qwen35, "１|２|३|4| x|1|2|3|4|5|6|7|8| |²|½| |Ⅷ"),
    ("qwen35", qwen35, "naïve| e\u{301}a\u{301}b| ก็ดี| หนึ่ง| हिन्दी"),
    (
        "qwen35",
        qwen35,
        "HTTPServer| isOK| ABCdef| AbcDEF| ǅaǅ| ªº",
    ),
    ("qwen35", qwen35, "a|/b|//\n|/c| !!\n\n|/| x"),
    (
        "qwen35",
        qwen35,
        "日本語|1|2|3|テスト|😀👍🏽| |\u{3000}x|\u{A0}y|\u{2028}z",
    ),
    ("qwen35", qwen35, "\u{301}a| \u{301}| |1|\u{301}"),
    ("qwen35", qwen35, " \t\n"),
    ("qwen35", qwen35, "\n\n"),
    ("qwen35", qwen35, "   "),
    ("qwen35", qwen35, "x|   "),
    ("qwen35", qwen35, "'"),
    ("qwen35", qwen35, "'| s"),
    ("qwen35", qwen35, "a|'b|'c|'''|d"),
    ("qwen35", qwen35, " '| | '|re"),
    ("qwen35", qwen35, "\r\r\n|a"),
    ("qwen35", qwen35, "…—“|q|”| €|5| +=-|1"),
    ("qwen35", qwen35, "ʰA| ʰa| ＡＢ"),
    (
        "gpt4o",
        gpt4o,
        "Hello|,| world|!| It's| |202|4|'s|  | best|\n\n| day|\t|!",
    ),
    ("gpt4o", gpt4o, "don't| DON'T| we'LL| '|S| '|ſx| I'Ve"),
    ("gpt4o", gpt4o, " | a|  | b| \n| c|\r\n\r\n| | d|  "),
    ("gpt4o", gpt4o, "１２३|4| x|123|456|78| |²½| |Ⅷ"),
    ("gpt4o", gpt4o, "naïve| e\u{301}a\u{301}b| ก็ดี| หนึ่ง| हिन्दी"),
    (
        "gpt4o",
        gpt4o,
        "HTTPServer| is|OK| ABCdef| Abc|DEF| ǅa|ǅ| ªº",
    ),
    ("gpt4o", gpt4o, "a|/b|//\n/|c| !!\n\n/| x"),
    (
        "gpt4o",
        gpt4o,
        "日本語|123|テスト|😀👍🏽| |\u{3000}x|\u{A0}y|\u{2028}z",
    ),
    ("gpt4o", gpt4o, "\u{301}a| \u{301}| |1|\u{301}"),
    ("gpt4o", gpt4o, " \t\n"),
    ("gpt4o", gpt4o, "\n\n"),
    ("gpt4o", gpt4o, "   "),
    ("gpt4o", gpt4o, "x|   "),
    ("gpt4o", gpt4o, "'"),
    ("gpt4o", gpt4o, "'| s"),
    ("gpt4o", gpt4o, "a|'b|'c|'''|d"),
    ("gpt4o", gpt4o, " '| | '|re"),
    ("gpt4o", gpt4o, "\r\r\n|a"),
    ("gpt4o", gpt4o, "…—“|q|”| €|5| +=-|1"),
    ("gpt4o", gpt4o, "ʰ|A| ʰa| ＡＢ"),
    (
        "tekken",
        tekken,
        "Hello|,| world|!| It|'s| |2|0|2|4|'s|  | best|\n\n| day|\t|!",
    ),
    ("tekken", tekken, "don|'t| DON|'T| we|'LL| '|S| '|ſx| I|'Ve"),
    ("tekken", tekken, " | a|  | b| \n| c|\r\n\r\n| | d|  "),
    ("tekken", tekken, "１|２|३|4| x|1|2|3|4|5|6|7|8| |²|½| |Ⅷ"),
    ("tekken", tekken, "naïve| e\u{301}a\u{301}b| ก็ดี| หนึ่ง| हिन्दी"),
    (
        "tekken",
        tekken,
        "HTTPServer| is|OK| ABCdef| Abc|DEF| ǅa|ǅ| ªº",
    ),
    ("tekken", tekken, "a|/b|//\n/|c| !!\n\n/| x"),
    (
        "tekken",
        tekken,
        "日本語|1|2|3|テスト|😀👍🏽| |\u{3000}x|\u{A0}y|\u{2028}z",
    ),
    ("tekken", tekken, "\u{301}a| \u{301}| |1|\u{301}"),
    ("tekken", tekken, " \t\n"),
    ("tekken", tekken, "\n\n"),
    ("tekken", tekken, "   "),
    ("tekken", tekken, "x|   "),
    ("tekken", tekken, "'"),
    ("tekken", tekken, "'| s"),
    ("tekken", tekken, "a|'b|'c|'''|d"),
    ("tekken", tekken, " '| | '|re"),
    ("tekken", tekken, "\r\r\n|a"),
    ("tekken", tekken, "…—“|q|”| €|5| +=-|1"),
    ("tekken", tekken, "ʰ|A| ʰa| ＡＢ"),
];

fn words(split: Split, text: &str) -> Vec<&str> {
    let mut words = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        let (word, after) = rest.split_at(split(rest));
        words.push(word);
        rest = after;
    }
    words
}

#[test]
fn words_are_those_of_the_published_expressions() {
    for (name, split, expected) in WORDS {
        let expected: Vec<&str> = expected.split('|').collect();
        assert_eq!(words(*split, &expected.concat()), expected, "{name}");
    }
}

#[test]
fn lines_alternate_with_breaks() {
    assert_eq!(words(lines, "a b\n\nc\n"), ["a b", "\n\n", "c", "\n"]);
}

proptest! {
    #[test]
    fn every_text_is_cut_into_words_that_are_not_empty(text in ".*|[ \n\r'sSrRa1\u{301}/]{0,40}") {
        for split in [gpt2, single_digits, llama3, qwen2, qwen35, gpt4o, tekken, lines] {
            let words = words(split, &text);
            prop_assert_eq!(words.concat(), text.clone());
            prop_assert!(words.iter().all(|word| !word.is_empty()));
        }
    }
}
