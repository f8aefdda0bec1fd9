//! Output types of every operator.
