//! Where a picture's values lie in an input.

use crate::recipe::Layout;

/// Channels, height and width of an input for one picture, and how they lie in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Target {
    pub channels: usize,
    pub height: usize,
    pub width: usize,
    pub layout: Layout,
}

impl Target {
    /// Of a shape without the batch: `CxHxW`, `HxWxC` or `HxW`. Where both ends could be the channels, they are first.
    ///
    /// # Errors
    /// Why no picture fits.
    pub fn of(shape: &[usize], layout: Option<Layout>) -> Result<Target, String> {
        let text: Vec<String> = shape.iter().map(usize::to_string).collect();
        let text = text.join("x");
        let colours = |n: usize| n == 1 || n == 3;
        let (layout, [channels, height, width]) = match (shape, layout) {
            (&[h, w], None) => (Layout::Nchw, [1, h, w]),
            (&[c, h, w], Some(Layout::Nchw)) => (Layout::Nchw, [c, h, w]),
            (&[h, w, c], Some(Layout::Nhwc)) => (Layout::Nhwc, [c, h, w]),
            (&[c, h, w], None) if colours(c) => (Layout::Nchw, [c, h, w]),
            (&[h, w, c], None) if colours(c) => (Layout::Nhwc, [c, h, w]),
            _ => {
                return Err(format!(
                    "a picture does not fit the shape {text}: it takes CxHxW, HxWxC or HxW with 1 or 3 channels"
                ));
            }
        };
        if !colours(channels) || height == 0 || width == 0 {
            return Err(format!(
                "a picture does not fit {channels} channels of {height}x{width}"
            ));
        }
        Ok(Target {
            channels,
            height,
            width,
            layout,
        })
    }

    /// How many values.
    pub fn elements(&self) -> usize {
        self.channels * self.height * self.width
    }

    /// Place of a value.
    pub fn at(&self, channel: usize, row: usize, column: usize) -> usize {
        match self.layout {
            Layout::Nhwc => (row * self.width + column) * self.channels + channel,
            Layout::Nchw => (channel * self.height + row) * self.width + column,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layouts_follow_the_shape() {
        let layout = |shape: &[usize]| Target::of(shape, None).map(|t| t.layout);
        assert_eq!(layout(&[3, 8, 9]), Ok(Layout::Nchw));
        assert_eq!(layout(&[8, 9, 3]), Ok(Layout::Nhwc));
        assert_eq!(layout(&[8, 9]), Ok(Layout::Nchw));
        assert_eq!(layout(&[3, 8, 3]), Ok(Layout::Nchw));
        let asked = Target::of(&[3, 8, 3], Some(Layout::Nhwc)).unwrap();
        assert_eq!((asked.height, asked.width), (3, 8));
        for wrong in [&[4, 8, 8][..], &[1000], &[3, 0, 8], &[1, 3, 8, 8]] {
            assert!(Target::of(wrong, None).is_err(), "{wrong:?}");
        }
        assert!(Target::of(&[8, 8, 3], Some(Layout::Nchw)).is_err());
    }
}
