package wire

import (
	"math/bits"
	"sync"
)

// Buffers come from pools of powers of two, so that an idle connection holds
// none and a busy one allocates none. Larger ones are left to the collector.
const (
	minBufferBits = 12 // 4 KiB
	maxBufferBits = 22 // 4 MiB
)

// buffer is a pooled slice; the struct travels with it so that giving it back
// allocates nothing.
type buffer struct {
	b []byte
}

var bufferPools [maxBufferBits - minBufferBits + 1]sync.Pool

// getBuffer returns an empty buffer with room for at least n bytes.
func getBuffer(n int) *buffer {
	class := 0
	if n > 1<<minBufferBits {
		class = bits.Len(uint(n-1)) - minBufferBits
	}
	if class >= len(bufferPools) {
		return &buffer{b: make([]byte, 0, n)}
	}
	if b, ok := bufferPools[class].Get().(*buffer); ok {
		return b
	}
	return &buffer{b: make([]byte, 0, 1<<(minBufferBits+class))}
}

// putBuffer gives a buffer back; its content must not be used any more.
func putBuffer(b *buffer) {
	c := cap(b.b)
	if c < 1<<minBufferBits || c > 1<<maxBufferBits || c&(c-1) != 0 {
		return
	}
	b.b = b.b[:0]
	bufferPools[bits.Len(uint(c))-1-minBufferBits].Put(b)
}
