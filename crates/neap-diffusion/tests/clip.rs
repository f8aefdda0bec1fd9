//! Tokens beside those of Hugging Face's `tokenizers` 0.23, set up as it sets CLIP's up, of a small vocabulary.

use neap_diffusion::Clip;

const MERGES: &str = "#version: 0.2
c a
ca t</w>
t h
th e</w>
s e
se a</w>
' s</w>
Ã ©</w>
Ã ©
1 2</w>
! !
!! !</w>
o o
oo o</w>
";

/// All bytes, all bytes at the end of a word, what is merged, and the ends.
fn vocabulary() -> String {
    let printed = (0x21..=0x7E).chain(0xA1..=0xAC).chain(0xAE..=0xFF);
    let letters: Vec<char> = printed
        .chain(0x100..0x144)
        .filter_map(char::from_u32)
        .collect();
    let mut tokens: Vec<String> = letters.iter().map(char::to_string).collect();
    tokens.extend(letters.iter().map(|letter| format!("{letter}</w>")));
    tokens.extend(MERGES.lines().skip(1).map(|line| line.replace(' ', "")));
    tokens.extend(["<|startoftext|>", "<|endoftext|>"].map(String::from));
    let ids = tokens.into_iter().zip(0_u32..);
    serde_json::to_string(&ids.collect::<std::collections::BTreeMap<_, _>>()).expect("texts")
}

fn clip(pad: Option<&str>) -> Clip {
    Clip::new(&vocabulary(), MERGES, pad).expect("right")
}

#[rustfmt::skip]
const TEXTS: &[(&str, &[u32])] = &[
    ("The cat's sea", &[515, 513, 518, 517]),
    ("  CAT,  the!!! 12\u{bd} ", &[513, 267, 515, 523, 272, 273, 126, 377]),
    ("\u{c9} e\u{301}t\u{e9}", &[519, 520, 83, 519]),
    ("\u{1f600} \u{4e2d}\u{6587}x", &[172, 253, 246, 478, 160, 116, 255, 162, 244, 229, 343]),
    ("don't we'll 'sea", &[67, 78, 333, 6, 339, 86, 324, 6, 75, 331, 518, 68, 320]),
    ("\u{391}\u{3a3} ooo oooo", &[138, 109, 139, 481, 525, 524, 78, 334]),
    ("a_b-c\t\u{130}", &[320, 318, 321, 268, 322, 328, 136, 485]),
    (" ", &[]),
];

const BEGIN: u32 = 526;
const END: u32 = 527;

#[test]
fn tokens_are_those_of_tokenizers() {
    let clip = clip(None);
    for (text, wanted) in TEXTS {
        let found = clip.encode(text, 77);
        assert_eq!(found.left_out, 0);
        assert_eq!(found.ids.len(), 77);
        assert_eq!(found.ids[0], BEGIN);
        let (tokens, rest) = found.ids[1..].split_at(wanted.len());
        assert_eq!(tokens, *wanted, "{text}");
        assert!(rest.iter().all(|id| *id == END));
    }
}

#[test]
fn a_long_text_is_cut_and_a_short_one_filled() {
    let found = clip(None).encode("cat cat the sea", 5);
    assert_eq!(found.ids, [BEGIN, 513, 513, 515, END]);
    assert_eq!(found.left_out, 1);
    let found = clip(Some("!</w>")).encode("cat", 5);
    assert_eq!(found.ids, [BEGIN, 513, END, 256, 256]);
}

#[test]
fn files_that_do_not_belong_together_are_refused() {
    let vocabulary = vocabulary();
    for (vocabulary, merges, pad) in [
        ("", MERGES, None),
        ("{}", MERGES, None),
        (vocabulary.as_str(), "#version: 0.2\nx y\n", None),
        (&vocabulary, "#version: 0.2\ncat\n", None),
        (&vocabulary, MERGES, Some("nothing")),
    ] {
        assert!(Clip::new(vocabulary, merges, pad).is_err());
    }
}
