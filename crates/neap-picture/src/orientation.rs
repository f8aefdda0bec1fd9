//! Which way up a picture was taken, as its EXIF data say.

/// How stored pixels lie, by EXIF's numbers from 1 to 8.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Orientation {
    #[default]
    Upright,
    /// Right is left.
    Mirrored,
    UpsideDown,
    /// Top is bottom.
    Flipped,
    /// Rows are columns.
    Transposed,
    /// A quarter turn to the right makes it upright.
    TurnedLeft,
    /// Rows are columns, from the end.
    Transverse,
    /// A quarter turn to the left makes it upright.
    TurnedRight,
}

use Orientation::{
    Flipped, Mirrored, Transposed, Transverse, TurnedLeft, TurnedRight, Upright, UpsideDown,
};

impl Orientation {
    fn of_number(number: u16) -> Orientation {
        match number {
            2 => Mirrored,
            3 => UpsideDown,
            4 => Flipped,
            5 => Transposed,
            6 => TurnedLeft,
            7 => Transverse,
            8 => TurnedRight,
            _ => Upright,
        }
    }

    /// What EXIF data say, from their TIFF header on; upright where they say nothing that is understood.
    pub fn of_exif(exif: &[u8]) -> Orientation {
        number(exif).map_or(Upright, Orientation::of_number)
    }

    /// Whether stored rows are columns of the upright picture.
    pub fn exchanges_sides(self) -> bool {
        matches!(self, Transposed | TurnedLeft | Transverse | TurnedRight)
    }

    /// Where, in pixels, the upright picture's pixel of column `x` and row `y` is stored. `width` and `height` are the upright
    /// picture's.
    pub fn place(self, x: usize, y: usize, width: usize, height: usize) -> usize {
        let (right, below) = (width - 1 - x, height - 1 - y);
        match self {
            Upright => y * width + x,
            Mirrored => y * width + right,
            UpsideDown => below * width + right,
            Flipped => below * width + x,
            Transposed => x * height + y,
            TurnedLeft => right * height + y,
            Transverse => right * height + below,
            TurnedRight => x * height + below,
        }
    }
}

/// The entry `Orientation` of the first directory.
fn number(exif: &[u8]) -> Option<u16> {
    let is_big = match exif.get(..4)? {
        [b'M', b'M', 0, 42] => true,
        [b'I', b'I', 42, 0] => false,
        _ => return None,
    };
    let short = |at: usize| -> Option<u16> {
        let bytes = exif.get(at..at + 2)?.try_into().ok()?;
        Some(match is_big {
            true => u16::from_be_bytes(bytes),
            false => u16::from_le_bytes(bytes),
        })
    };
    let long = |at: usize| -> Option<usize> {
        let (first, second) = (short(at)?, short(at + 2)?);
        let (high, low) = if is_big {
            (first, second)
        } else {
            (second, first)
        };
        Some(usize::from(high) << 16 | usize::from(low))
    };
    let directory = long(4)?;
    let entries = short(directory)?;
    (0..usize::from(entries)).find_map(|entry| {
        let at = directory + 2 + entry * 12;
        let is_orientation = (short(at)?, short(at + 2)?, long(at + 4)?) == (0x112, 3, 1);
        is_orientation.then(|| short(at + 8)).flatten()
    })
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// EXIF data that say so, and nothing else.
    pub fn exif(number: u8) -> Vec<u8> {
        let mut exif = b"MM\0\x2a\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0".to_vec();
        exif.extend([number, 0, 0, 0, 0, 0, 0]);
        exif
    }

    #[test]
    fn exif_in_both_orders_of_bytes_and_damaged() {
        assert_eq!(Orientation::of_exif(&exif(6)), TurnedLeft);
        let little = b"II\x2a\0\x08\0\0\0\x01\0\x12\x01\x03\0\x01\0\0\0\x03\0\0\0";
        assert_eq!(Orientation::of_exif(little), UpsideDown);
        for end in 0..little.len() {
            // Either way is fine here.
            let _ = Orientation::of_exif(&little[..end]);
        }
        assert_eq!(Orientation::of_exif(&exif(9)), Upright);
    }

    #[test]
    fn every_orientation_stands_upright() {
        // Upright it is 3 wide and 2 high: 0 1 2 / 3 4 5.
        for (number, stored) in [
            (1, [0, 1, 2, 3, 4, 5]),
            (2, [2, 1, 0, 5, 4, 3]),
            (3, [5, 4, 3, 2, 1, 0]),
            (4, [3, 4, 5, 0, 1, 2]),
            (5, [0, 3, 1, 4, 2, 5]),
            (6, [2, 5, 1, 4, 0, 3]),
            (7, [5, 2, 4, 1, 3, 0]),
            (8, [3, 0, 4, 1, 5, 2]),
        ] {
            let orientation = Orientation::of_exif(&exif(number));
            let found: Vec<u8> = (0..6)
                .map(|i| stored[orientation.place(i % 3, i / 3, 3, 2)])
                .collect();
            assert_eq!(found, [0, 1, 2, 3, 4, 5], "{number}");
        }
    }
}
