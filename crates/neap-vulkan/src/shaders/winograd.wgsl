// Convolutions of 3x3, one place apart, by F(2x2, 3x3): what all three kernels are told. A tile is 2x2 outputs; it has 16 points, and
// what is multiplied is a matrix for each point, by the kernel for convolutions, to which points are images. They work on some tiles and
// some panels at a time, so that what lies between them fits the scratch of a step:
//
//   values     [point][plane of channels in][tile][16]
//   matrices   [point][panel]: a panel of 1x1, with biases of 0
//   products   [point][panel][tile][16]
//
// For drivers that compute on the processor, as `conv_lanes.wgsl`.

struct Shape {
    c_in: u32,
    // Sixteens of channels of input and output.
    planes_in: u32,
    planes_out: u32,
    in_h: u32,
    in_w: u32,
    out_h: u32,
    out_w: u32,
    pad_h: u32,
    pad_w: u32,
    // Of a row, and of an image.
    row_tiles: u32,
    image_tiles: u32,
    // Those that are worked on: the first one's number, how many, and for how many there is room, a multiple of four.
    first_tile: u32,
    tiles: u32,
    room: u32,
    // The same of panels.
    first_panel: u32,
    panels: u32,
}

// Where the outputs of a tile begin.
struct Place {
    image: u32,
    top: u32,
    left: u32,
}

// Of those that are worked on, the n-th.
fn place_of(n: u32) -> Place {
    let s = params.shape;
    let tile = s.first_tile + n;
    let image = tile / s.image_tiles;
    let of_image = tile - image * s.image_tiles;
    let row = of_image / s.row_tiles;
    return Place(image, row * 2u, (of_image - row * s.row_tiles) * 2u);
}
