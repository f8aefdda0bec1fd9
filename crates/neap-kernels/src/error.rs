//! Why a kernel refuses a call. Kernels check sizes before they touch memory and never panic on them.

use std::fmt;

/// A kernel's refusal; nothing has been written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KernelError {
    /// The parameters are valid but no kernel here serves them.
    Unsupported(&'static str),
    /// The parameters contradict each other.
    Invalid(&'static str),
    /// A buffer is shorter than the parameters need.
    TooShort {
        buffer: &'static str,
        needed_elements: usize,
        given_elements: usize,
    },
}

impl fmt::Display for KernelError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            KernelError::Unsupported(what) => write!(f, "unsupported by the kernels: {what}"),
            KernelError::Invalid(what) => write!(f, "invalid kernel parameters: {what}"),
            KernelError::TooShort {
                buffer,
                needed_elements,
                given_elements,
            } => write!(
                f,
                "{buffer} has {given_elements} elements where {needed_elements} are needed"
            ),
        }
    }
}

impl std::error::Error for KernelError {}

/// Refuses a buffer with fewer than `needed` elements; `None` is a count that overflowed.
pub(crate) fn check_len(
    buffer: &'static str,
    given_elements: usize,
    needed: Option<usize>,
) -> Result<(), KernelError> {
    let needed_elements = needed.ok_or(KernelError::Invalid("a size overflows"))?;
    if given_elements < needed_elements {
        return Err(KernelError::TooShort {
            buffer,
            needed_elements,
            given_elements,
        });
    }
    Ok(())
}

/// The product of sizes, or `None` on overflow.
pub(crate) fn checked_product(factors: &[usize]) -> Option<usize> {
    factors
        .iter()
        .try_fold(1usize, |product, &f| product.checked_mul(f))
}
