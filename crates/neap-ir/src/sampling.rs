//! Operators that read images between their elements, at places that data say.

use crate::op::Window;
use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Sampling {
    /// x `[N,C,spatial...]`, grid `[N,output...,rank]`: places from -1 to 1, last axis first.
    Grid {
        mode: GridMode,
        padding: GridPadding,
        align_corners: bool,
    },
    /// x `[N,C,H,W]`, boxes `[R,4]` (x and y of both corners), int64 image of each box `[R]`.
    RoiAlign(RoiAlign),
    /// x `[N,C,H,W]`, boxes `[R,5]` (image, x and y of both corners, which are rounded to elements).
    MaxRoiPool { output: [usize; 2], scale: f32 },
    /// x `[N,C,H,W]`, w `[M,C/groups,kh,kw]`, offsets `[N,offset_groups*kh*kw*2,oh,ow]`, optional bias `[M]`, optional mask
    /// `[N,offset_groups*kh*kw,oh,ow]`.
    DeformConv {
        window: Window,
        groups: usize,
        offset_groups: usize,
    },
}

impl Sampling {
    pub fn name(&self) -> &'static str {
        match self {
            Sampling::Grid { .. } => "GridSample",
            Sampling::RoiAlign(_) => "RoiAlign",
            Sampling::MaxRoiPool { .. } => "MaxRoiPool",
            Sampling::DeformConv { .. } => "DeformConv",
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum GridMode {
    /// Half to even.
    Nearest,
    Linear,
    /// Of images only.
    Cubic,
}

/// What is outside.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum GridPadding {
    Zeros,
    Border,
    Reflection,
}

/// Boxes of any size as `[R,C,output...]`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RoiAlign {
    /// The largest of weighted elements, instead of their mean.
    pub largest: bool,
    pub output: [usize; 2],
    /// Samples of each bin along each axis; 0 is as many as elements of the image, rounded up.
    pub samples: usize,
    pub scale: f32,
    /// Corners are half an element before what is given, and boxes may be smaller than one element.
    pub half_pixel: bool,
}
