//go:build !linux

package udp

func openNative(c Config) (Link, error) { return openPortable(c) }
