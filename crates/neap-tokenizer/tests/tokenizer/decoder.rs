//! Characters from bytes that come in pieces.

use neap_tokenizer::Decoder;
use proptest::prelude::*;

#[test]
fn characters_come_when_they_are_whole() {
    let mut decoder = Decoder::new();
    assert_eq!(decoder.push(b"a\xE2"), "a");
    assert_eq!(decoder.push(b"\x82"), "");
    assert_eq!(decoder.push(b"\xAC!"), "€!");
    assert_eq!(decoder.push(b"\xFFb\xF0\x9F"), "\u{FFFD}b");
    assert_eq!(decoder.push(b"c"), "\u{FFFD}c");
    assert_eq!(decoder.push(b"\xC3"), "");
    assert_eq!(decoder.finish(), "\u{FFFD}");
    assert_eq!(decoder.finish(), "");
}

proptest! {
    #[test]
    fn pieces_give_what_all_bytes_together_give(bytes: Vec<u8>, text: String, cuts: Vec<prop::sample::Index>) {
        for bytes in [bytes, text.into_bytes()] {
            let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(bytes.len() + 1)).collect();
            cuts.extend([0, bytes.len()]);
            cuts.sort_unstable();
            let mut decoder = Decoder::new();
            let mut shown = String::new();
            for cut in cuts.windows(2) {
                shown += decoder.push(&bytes[cut[0]..cut[1]]);
            }
            shown += decoder.finish();
            prop_assert_eq!(&shown, &*String::from_utf8_lossy(&bytes));
        }
    }
}
