//! Decoding keeps to the memory that heads say. Alone in its binary, as it counts what is allocated.

mod support;

use neap_picture::{Head, MOST_BYTES, Recipe, Refusal, Target, decode, prepare};
use neap_testing::{Counting, most_bytes};
use support::{colour, file, kinds, samples};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn decoding_takes_what_heads_say_and_nothing_beyond_a_limit() {
    heads_say_what_decoding_takes();
    a_picture_beyond_the_limit_is_not_decoded();
}

fn heads_say_what_decoding_takes() {
    let recipe = Recipe::default();
    let mut files = kinds(500, 400);
    files.extend(samples());
    for (name, bytes) in files {
        for target in [colour(), Target::of(&[300, 300], None).unwrap()] {
            let picture = file(&bytes);
            let told = Head::of(&picture).unwrap().bytes(target.width);
            let taken = most_bytes(|| {
                prepare(&picture, &target, &recipe, MOST_BYTES).unwrap();
            });
            assert!(taken <= told, "{name}: {taken} of {told}");
            assert!(told < 3 * taken + (600 << 10), "{name}: {taken} of {told}");
        }
    }
}

fn a_picture_beyond_the_limit_is_not_decoded() {
    for (name, bytes) in kinds(500, 400) {
        let picture = file(&bytes);
        let head = Head::of(&picture).unwrap();
        let limit = head.bytes(8) - 1;
        let taken = most_bytes(|| {
            let refused = decode(&picture, &colour(), limit).unwrap_err();
            assert!(matches!(refused, Refusal::TooLarge { bytes, .. } if bytes == limit + 1));
        });
        assert!(taken < 200 << 10, "{name}: {taken}");
        assert!(decode(&picture, &colour(), limit + 1).is_ok(), "{name}");
    }
}
