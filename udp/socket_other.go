//go:build !linux

package udp

import "fmt"

func openNative(c Config) (Link, error) {
	if c.Ring {
		return nil, fmt.Errorf("udp: %w", ErrRing)
	}
	return openPortable(c)
}

func openNativeShards(c Config, _ int) ([]Link, error) {
	l, err := Open(c)
	return []Link{l}, err
}
