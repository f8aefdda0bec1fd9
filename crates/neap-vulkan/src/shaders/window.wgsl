// Sizes of a sliding window: of all kernels that have one. Of two, the first is height.

struct Shape {
    batch: u32,
    c_in: u32,
    c_out: u32,
    groups: u32,
    in_h: u32,
    in_w: u32,
    out_h: u32,
    out_w: u32,
    kernel_h: u32,
    kernel_w: u32,
    stride_h: u32,
    stride_w: u32,
    dilation_h: u32,
    dilation_w: u32,
    pad_h: u32,
    pad_w: u32,
    // With the padding below and to the right; only averages that count padding look at it.
    padded_h: u32,
    padded_w: u32,
    // Panels of the slice: the first one's number. How many is the grid's second size.
    first_panel: u32,
    // Of pooling: 0 maximum, 1 average, 2 average that counts padding. Where an invocation computes several panels: how many
    // the slice has.
    kind: u32,
    // So many an invocation computes at most.
    panels_each: u32,
    // Where each image has other weights: how far apart these are, in fours; else 0.
    images_apart: u32,
    // Of tiles: see `tiles.wgsl`.
    tile: u32,
}
