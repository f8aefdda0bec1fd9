//! How far apart the channel planes of a tensor lie: a call may compute a band of rows of taller tensors.
//!
//! ```text
//!   block 0  │ rows 0.. │▓▓ band ▓▓│ .. H │   a band is the same rows of every channel block:
//!   block 1  │ rows 0.. │▓▓ band ▓▓│ .. H │   the call gets memory from its first row on,
//!   ...                                       and the distance from block to block
//! ```

use crate::error::{KernelError, check_len};

/// From one channel plane to the next, in floats or in steps; at least as much as the rows of the call take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Planes {
    pub input: usize,
    /// Also of a residual.
    pub output: usize,
}

/// Refuses a buffer in which `count` planes of `plane` floats, `stride` apart, do not fit.
pub(crate) fn check_planes(
    buffer: &'static str,
    given_elements: usize,
    count: Option<usize>,
    stride: usize,
    plane: Option<usize>,
) -> Result<(), KernelError> {
    let needed = match plane {
        Some(plane) => planes_elements(count, stride, plane)?,
        None => None,
    };
    check_len(buffer, given_elements, needed)
}

/// Elements from the first to the last of `count` planes; `None` for more than there can be.
pub(crate) fn planes_elements(
    count: Option<usize>,
    stride: usize,
    plane: usize,
) -> Result<Option<usize>, KernelError> {
    if stride < plane {
        return Err(KernelError::Invalid("planes overlap"));
    }
    Ok(count.and_then(|count| match count.checked_sub(1) {
        Some(before) => before.checked_mul(stride)?.checked_add(plane),
        None => Some(0),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn planes_must_fit_and_not_overlap() {
        let check = |given, count, stride, plane| check_planes("x", given, count, stride, plane);
        assert_eq!(check(12, Some(3), 4, Some(4)), Ok(()));
        // The last plane may end before the next would begin.
        assert_eq!(check(11, Some(3), 4, Some(3)), Ok(()));
        assert!(check(10, Some(3), 4, Some(3)).is_err());
        assert_eq!(check(0, Some(0), 4, Some(3)), Ok(()));
        assert!(check(100, Some(3), 2, Some(3)).is_err());
        assert!(check(100, None, 4, Some(3)).is_err());
        assert!(check(100, Some(3), usize::MAX, Some(3)).is_err());
        assert!(check(100, Some(3), 4, None).is_err());
    }
}
