//! Stop strings in texts that come in pieces.

use neap_tokenizer::StopStrings;
use proptest::prelude::*;

fn all(stops: &[&str], pieces: &[&str]) -> (String, bool) {
    let mut stop = StopStrings::new(stops.iter().map(|stop| (*stop).to_owned()));
    let mut shown = String::new();
    for piece in pieces {
        let (text, is_over) = stop.push(piece);
        shown += text;
        if is_over {
            return (shown, true);
        }
    }
    shown += stop.finish();
    (shown, false)
}

#[test]
fn what_may_be_the_beginning_of_a_stop_string_is_held_back() {
    let mut stop = StopStrings::new(["END".to_owned(), String::new()]);
    assert_eq!(stop.push("the E"), ("the ", false));
    assert_eq!(stop.push("N"), ("", false));
    assert_eq!(stop.push("E"), ("EN", false));
    assert_eq!(stop.push("ND of"), ("", true));
    assert_eq!(stop.finish(), "");
}

#[test]
fn the_first_of_several_ends_the_text() {
    assert_eq!(all(&["b c", "c"], &["a b", " c"]), ("a ".into(), true));
    assert_eq!(all(&["xyz", "y"], &["wx", "y"]), ("wx".into(), true));
    assert_eq!(all(&["äö"], &["aä", "b"]), ("aäb".into(), false));
}

proptest! {
    #[test]
    fn a_text_ends_where_the_first_stop_string_begins(
        stops in prop::collection::vec("[ab]{1,4}", 0..3), pieces in prop::collection::vec("[abc]{0,5}", 0..9),
    ) {
        let stops: Vec<&str> = stops.iter().map(String::as_str).collect();
        let pieces: Vec<&str> = pieces.iter().map(String::as_str).collect();
        let (shown, is_over) = all(&stops, &pieces);
        // What came until the first piece in which a stop string ends.
        let mut text = String::new();
        let end = pieces.iter().find_map(|piece| {
            text += piece;
            stops.iter().filter_map(|stop| text.find(stop)).min()
        });
        prop_assert_eq!(is_over, end.is_some());
        prop_assert_eq!(&shown, &text[..end.unwrap_or(text.len())]);
    }
}
