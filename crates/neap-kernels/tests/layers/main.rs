//! Tables of shapes for the kernels that are not matrix products, each against a naive reference in f64.

mod support;

mod attention;
mod blocks;
mod depthwise;
mod elementwise;
mod formats;
mod integers;
mod pool;
mod reorder;
mod resize;
mod rows;
