//! Softmax and the normalisations.

pub(crate) mod channel;
pub(crate) mod lines;
pub(crate) mod space;
