//! Which shape a photo gives to an input that leaves dimensions open: one picture, of the photo's size where that is open.

use super::image::{self, PixelLayout};
use neaptide::{Declared, DeclaredDim};
use std::path::Path;

/// `None` where the input takes no photo, or the file is none.
pub fn shape(
    path: &Path,
    input: &Declared,
    layout: Option<PixelLayout>,
    trained: Option<[usize; 2]>,
) -> Option<Vec<usize>> {
    let dims = input.dims.as_deref()?;
    let sizes: Vec<Option<usize>> = dims.iter().map(size_of).collect();
    let (batch, image) = match sizes[..] {
        [a, b, c] => (None, [a, b, c]),
        [batch, a, b, c] => (Some(batch.unwrap_or(1)), [a, b, c]),
        _ => return None,
    };
    let layout = layout.or_else(|| layout_of(image))?;
    let [channels, height, width] = match layout {
        PixelLayout::Nchw => image,
        PixelLayout::Nhwc => [image[2], image[0], image[1]],
    };
    let (height, width) = match (height, width, trained) {
        (Some(height), Some(width), _) => (height, width),
        // Pictures that the model was trained with had this size.
        (height, width, Some([own_height, own_width])) => {
            (height.unwrap_or(own_height), width.unwrap_or(own_width))
        }
        (height, width, None) => {
            let (own_height, own_width) = image::size(path)?;
            // One side that the model says makes the other one, as the photo's sides are to each other.
            let scaled = |side: usize, own: usize, other: usize| {
                ((side as f64 * own as f64 / other as f64).round() as usize).max(1)
            };
            match (height, width) {
                (Some(height), _) => (height, scaled(height, own_width, own_height)),
                (_, Some(width)) => (scaled(width, own_height, own_width), width),
                _ => (own_height, own_width),
            }
        }
    };
    let channels = channels.unwrap_or(3);
    let image = match layout {
        PixelLayout::Nchw => [channels, height, width],
        PixelLayout::Nhwc => [height, width, channels],
    };
    Some(batch.into_iter().chain(image).collect())
}

fn size_of(dim: &DeclaredDim) -> Option<usize> {
    match dim {
        DeclaredDim::Fixed(size) => Some(*size),
        DeclaredDim::Named(_) | DeclaredDim::Open => None,
    }
}

/// As far as the declared sizes say; with no channels among them, as most models are.
fn layout_of(image: [Option<usize>; 3]) -> Option<PixelLayout> {
    let colours = |size: Option<usize>| size.map(|n| n == 1 || n == 3);
    match (colours(image[0]), colours(image[2])) {
        (Some(true), Some(true)) => None,
        (Some(true), _) => Some(PixelLayout::Nchw),
        (_, Some(true)) => Some(PixelLayout::Nhwc),
        (None, _) => Some(PixelLayout::Nchw),
        (Some(false), None) => Some(PixelLayout::Nhwc),
        (Some(false), Some(false)) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(image: [i64; 3]) -> Option<PixelLayout> {
        layout_of(image.map(|size| usize::try_from(size).ok()))
    }

    #[test]
    fn channels_are_where_the_declared_sizes_allow_them() {
        assert_eq!(layout([3, -1, -1]), Some(PixelLayout::Nchw));
        assert_eq!(layout([-1, -1, 3]), Some(PixelLayout::Nhwc));
        assert_eq!(layout([-1, -1, -1]), Some(PixelLayout::Nchw));
        assert_eq!(layout([224, 224, -1]), Some(PixelLayout::Nhwc));
        assert_eq!(layout([3, 224, 3]), None);
        assert_eq!(layout([4, 224, 224]), None);
    }
}
