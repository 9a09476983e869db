"""Client settings, and the plug-ins that they name: serializers, partitioners, interceptors, assignors."""
