// Package cuda is a real NVIDIA GPU as a [policies.Device]: the very policy
// code that runs in simulation takes its segments from a card here, with real
// addresses and a real "out of memory".
//
// The package has three layers:
//
//   - [Driver] is the handful of driver calls that an allocator needs. With the
//     build tag cuda, [Open] returns one that goes through gorgonia.org/cu
//     (context, cuMemAlloc, cuMemFree, cuMemGetInfo) and a thin cgo file of our
//     own for the virtual memory calls that cu does not wrap. Without the tag,
//     Open says how to build.
//   - [Device] keeps the books on top of a Driver: what is held, how long each
//     call took, how much of the card is in use, and the rules by which a run
//     never harms the machine. It is plain Go, tested against a driver that
//     counts and can fail any call.
//   - [MeasureCost] times the driver's calls by size.
//
// Rules that keep the machine whole: a run refuses to start while other
// processes use the card unless forced; it takes at most what is free less a
// reserve; it uses no managed memory; and [Device.Close] gives everything back
// after an error or a cancellation, trying again what a first pass could not
// release.
//
// Building with the tag needs CUDA's cuda.h (11.8 and later, 12 or 13), a
// libcuda to link with and CGO_CFLAGS=-I<this package>/include: docs/validation.md.
package cuda
