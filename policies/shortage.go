package policies

// Shortage is why a Malloc found no memory, in the allocator's own terms. An
// error that wraps ErrOutOfMemory may be or wrap one; without one the device
// refused, or the limit of Env. It is valid until the policy's next call.
type Shortage struct {
	// Wanted is the bytes that the device, or the limit, was asked for at
	// last: a whole segment, where the allocator takes segments. 0 = as many
	// as the request.
	Wanted int64
	// Limit is the allocator's limit that refused, in bytes, its own or that
	// of Env; 0 = it was not a limit.
	Limit int64
	// Counted is the bytes that counted towards Limit.
	Counted int64
	// Final says that no free memory inside the allocator could have helped,
	// in whatever pieces: the request is too large for it, or Limit counts
	// bytes in use.
	Final bool
	// Reason is what a user must know besides, in one sentence; often empty.
	Reason string
	// Err wraps ErrOutOfMemory; nil is ErrOutOfMemory itself.
	Err error
}

// Error is that of Err.
func (s *Shortage) Error() string { return s.Unwrap().Error() }

// Unwrap returns Err.
func (s *Shortage) Unwrap() error {
	if s.Err == nil {
		return ErrOutOfMemory
	}
	return s.Err
}
