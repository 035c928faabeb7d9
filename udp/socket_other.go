//go:build !linux

package udp

import "fmt"

func openNative(c Config) (Link, error) {
	if c.Ring {
		return nil, RingError()
	}
	return openPortable(c)
}

// RingError returns why this process cannot have a packet ring, nil if it can.
func RingError() error { return fmt.Errorf("udp: %w", ErrRing) }

func openNativeShards(c Config, _ int) ([]Link, error) {
	l, err := Open(c)
	return []Link{l}, err
}
