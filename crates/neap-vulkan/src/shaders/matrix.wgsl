// Rows times panels: what is told of them.

struct Shape {
    rows: u32,
    k: u32,
    n: u32,
    first_panel: u32,
    // Of the slice.
    panels: u32,
    // Of tiles: see `tiles.wgsl`.
    tile: u32,
}

@group(0) @binding(3) var<storage, read> r: array<f32>;
@group(0) @binding(4) var<storage, read_write> y: array<f32>;

