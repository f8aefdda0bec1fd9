//! Classes of characters, as regular expressions name them.

use unicode_general_category::{GeneralCategory as Category, get_general_category};

/// `\p{L}`
pub(crate) fn is_letter(c: char) -> bool {
    if c.is_ascii() {
        return c.is_ascii_alphabetic();
    }
    matches!(
        get_general_category(c),
        Category::UppercaseLetter
            | Category::LowercaseLetter
            | Category::TitlecaseLetter
            | Category::ModifierLetter
            | Category::OtherLetter
    )
}

/// `\p{N}`
pub(crate) fn is_number(c: char) -> bool {
    if c.is_ascii() {
        return c.is_ascii_digit();
    }
    matches!(
        get_general_category(c),
        Category::DecimalNumber | Category::LetterNumber | Category::OtherNumber
    )
}

/// `\p{M}`
pub(crate) fn is_mark(c: char) -> bool {
    matches!(
        get_general_category(c),
        Category::NonspacingMark | Category::SpacingMark | Category::EnclosingMark
    )
}

/// `[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]`
pub(crate) fn is_upper(c: char) -> bool {
    is_letter(c) && get_general_category(c) != Category::LowercaseLetter || is_mark(c)
}

/// `[\p{Ll}\p{Lm}\p{Lo}\p{M}]`
pub(crate) fn is_lower(c: char) -> bool {
    let is_capital = matches!(
        get_general_category(c),
        Category::UppercaseLetter | Category::TitlecaseLetter
    );
    is_letter(c) && !is_capital || is_mark(c)
}

pub(crate) fn is_newline(c: char) -> bool {
    matches!(c, '\r' | '\n')
}
