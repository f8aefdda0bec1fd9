//! Tables of shapes for all kernels, each against a naive reference in f64.

mod support;

mod attention;
mod blocks;
mod conv;
mod depthwise;
mod depthwise_of_steps;
mod dots;
mod elementwise;
mod few_by_panels;
mod first_layers_of_steps;
mod formats;
mod integers;
mod integers_tails;
mod linear;
mod pairs;
mod panels;
mod plain;
mod pool;
mod reorder;
mod resize;
mod rounded_rows;
mod rows;
mod trained;
mod winograd;
mod winograd_spread;
