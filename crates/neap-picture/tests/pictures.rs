//! Files of every kind: what they decode to, and how they can be wrong.

mod support;

use neap_picture::{Head, MOST_BYTES, Pixels, Recipe, Refusal, Resize, Target, decode, prepare};
use support::{Jpeg, PLAIN, bmp_of, colour, decoded, file, kinds, noise, png_of, samples, webp_of};

#[test]
fn whole_files_decode_to_what_was_encoded() {
    let (width, height) = (37, 21);
    let rgb = noise(width, height, 3);
    for bytes in [
        png_of(width, height, png::ColorType::Rgb, &rgb),
        webp_of(width, height, &rgb),
        bmp_of(width, height, &rgb),
    ] {
        assert_eq!(
            decoded(&bytes),
            Pixels::new(width, height, 3, rgb.clone()).unwrap()
        );
    }
    let luma = noise(width, height, 1);
    let grey = decoded(&png_of(width, height, png::ColorType::Grayscale, &luma));
    assert_eq!((grey.channels, &grey.data), (1, &luma));
    for (name, bytes) in samples() {
        let pixels = decoded(&bytes);
        let near = |at: usize, wanted: u8| pixels.data[at].abs_diff(wanted) < 6;
        assert!(near(0, 192) && near(1, 43) && near(2, 93), "{name}");
    }
    // In grey where the input is: 0.299 of red, 0.587 of green, 0.114 of blue.
    let target = Target::of(&[8, 8], None).unwrap();
    let one = png_of(1, 1, png::ColorType::Rgb, &[200, 40, 90]);
    assert_eq!(decode(&file(&one), &target, MOST_BYTES).unwrap().data, [94]);
}

#[test]
fn photos_stand_upright() {
    // Left black, right white; taken with the camera on its side.
    let rgb: Vec<u8> = (0..32 * 16 * 3)
        .map(|i| if i / 3 % 32 < 16 { 0 } else { 255 })
        .collect();
    let turned = Jpeg {
        exif: Some(6),
        ..PLAIN
    }
    .of(32, 16, &rgb);
    assert_eq!(Head::of(&file(&turned)).unwrap().upright(), (16, 32));
    let recipe = Recipe {
        resize: Resize::Stretch,
        ..Recipe::default()
    };
    let target = Target::of(&[2, 1], None).unwrap();
    let small = prepare(&file(&turned), &target, &recipe, MOST_BYTES).unwrap();
    assert!(
        small.data[0] < 60 && small.data[1] > 195,
        "{:?}",
        small.data
    );
}

#[test]
fn pictures_that_are_cut_short_are_refused() {
    for (name, bytes) in kinds(300, 200) {
        let len = bytes.len();
        for end in [0, 1, 11, 20, 100, len / 5, len / 2, len - 2000, len - 3] {
            let cut = file(&bytes[..end]);
            assert!(Head::of(&cut).is_err(), "{name} up to {end} of {len}");
            let refused = decode(&cut, &colour(), MOST_BYTES).unwrap_err();
            assert!(matches!(refused, Refusal::Bad(_)), "{name} up to {end}");
        }
    }
    // What follows a picture's end is another matter.
    let mut more = PLAIN.of(300, 200, &noise(300, 200, 3));
    more.extend(vec![1; 100 << 10]);
    assert!(Head::of(&file(&more)).is_ok());
    // A small picture inside of the head has an end of its own.
    let mut inside = PLAIN.of(300, 200, &noise(300, 200, 3));
    inside.splice(2..2, [0xff, 0xe1, 0, 6, 0xff, 0xd8, 0xff, 0xd9]);
    assert!(Head::of(&file(&inside)).is_ok());
    let half = inside.len() / 2;
    assert!(Head::of(&file(&inside[..half])).is_err());
}

#[test]
fn no_bytes_make_it_panic() {
    let mut files = kinds(20, 12);
    files.extend(samples());
    for (_, bytes) in files {
        for at in 0..bytes.len().min(300) {
            for value in [0, 0x7f, 0xff] {
                let mut wrong = bytes.clone();
                wrong[at] = value;
                // Either way is fine here.
                let _ = decode(&file(&wrong), &colour(), 16 << 20);
            }
        }
    }
}
