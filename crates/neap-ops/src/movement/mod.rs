//! Operators that move elements without computing on them.

pub(crate) mod gather;
pub(crate) mod join;
pub(crate) mod make;
pub(crate) mod pad;
pub(crate) mod scatter;
pub(crate) mod view;
